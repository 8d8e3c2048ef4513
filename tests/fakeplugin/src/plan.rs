//! Fault plans: what goes wrong, and at which call.
//!
//! Input: a text (for the grammar see README.md). Output: for each call of a point since the plan
//! was set, its delay and its action.
//!
//! Invariants:
//! - PLAN-1. A plan with an invalid rule is refused as a whole, and the error names the rule: a
//!   misspelt fault must not mean no fault.
//! - PLAN-2. A rule is accepted only if its action is possible at its point (`null` where an object
//!   is returned, and so on).
//! - PLAN-3. The action at a call is a function of the plan and of the points and sizes of the
//!   calls so far.

use std::time::Duration;

use crate::points::{Point, point};

/// An error: an Abseil status code and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(INVALID_ARGUMENT, message)
    }
}

pub(crate) const INVALID_ARGUMENT: u32 = 3;
pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
pub(crate) const FAILED_PRECONDITION: u32 = 9;
pub(crate) const UNIMPLEMENTED: u32 = 12;
pub(crate) const INTERNAL: u32 = 13;
pub(crate) const DATA_LOSS: u32 = 15;

/// Names of the codes, starting with 1.
const CODES: [&str; 16] = [
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The action at a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Fail(Failure),
    /// The call succeeds, and the event that it returns fails.
    EventError(Failure),
    WrongStructSize,
    /// The call succeeds and returns no object.
    Null,
    Hang,
    /// The process ends with SIGABRT.
    Abort,
    /// The process exits with this status, without running destructors.
    Exit(i32),
}

/// The calls that a rule selects among those with its sizes, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Between(u64, u64),
    Every(u64),
}

impl When {
    fn has(self, call: u64) -> bool {
        match self {
            When::Between(first, last) => (first..=last).contains(&call),
            When::Every(period) => call.is_multiple_of(period),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// A delay before anything else.
    Delay(Duration),
    Act(Action),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    point: &'static str,
    /// The smallest and the largest size.
    sizes: (u64, u64),
    when: When,
    what: What,
    /// The number of calls with its point and sizes so far.
    seen: u64,
}

/// A fault plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan(Vec<Rule>);

impl Plan {
    pub(crate) const fn none() -> Plan {
        Plan(Vec::new())
    }

    /// Parses a plan: rules on lines of their own or separated by `;`. `#` begins a comment.
    pub(crate) fn parse(text: &str) -> Result<Plan, String> {
        let mut rules = Vec::new();
        let mut reader = Reader { rest: text };
        while !reader.is_at_end() {
            let start = reader.rest;
            let rule = reader.rule().map_err(|why| {
                let line = start.lines().next().unwrap_or_default().trim();
                format!("the rule `{line}` of the plan of faults: {why}")
            })?;
            rules.push(rule);
        }
        Ok(Plan(rules))
    }

    /// The effect at the next call of a point with this size: all selected delays, then the first
    /// selected action.
    pub(crate) fn next(&mut self, point: &str, size: u64) -> (Duration, Option<Action>) {
        let (mut delay, mut act) = (Duration::ZERO, None);
        for rule in self.0.iter_mut().filter(|rule| rule.point == point) {
            if !(rule.sizes.0..=rule.sizes.1).contains(&size) {
                continue;
            }
            rule.seen += 1;
            match &rule.what {
                _ if !rule.when.has(rule.seen) => {}
                What::Delay(more) => delay += *more,
                What::Act(action) => act = act.or_else(|| Some(action.clone())),
            }
        }
        (delay, act)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    /// Skips blanks, separators and comments.
    fn is_at_end(&mut self) -> bool {
        loop {
            self.rest = self.rest.trim_start_matches(|c: char| c.is_whitespace() || c == ';');
            match self.rest.strip_prefix('#') {
                Some(comment) => self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest),
                None => return self.rest.is_empty(),
            }
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn takes(&mut self, token: &str) -> bool {
        self.blanks();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.takes(token) { Ok(()) } else { Err(format!("`{token}` is missing")) }
    }

    fn word(&mut self) -> Result<String, String> {
        self.blanks();
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if word.is_empty() { Err("a word is missing".to_owned()) } else { Ok(word.to_owned()) }
    }

    fn number(&mut self) -> Result<u64, String> {
        self.blanks();
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits.parse().map_err(|_| "a number is missing or too large".to_owned())
    }

    fn text(&mut self) -> Result<String, String> {
        self.expect("\"")?;
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return Ok(text);
                }
                '\\' => text.extend(chars.next().map(|(_, c)| c)),
                c => text.push(c),
            }
        }
        Err("a text has no end".to_owned())
    }

    fn rule(&mut self) -> Result<Rule, String> {
        let name = self.word()?;
        let point = point(&name).ok_or_else(|| format!("no function is called {name}"))?;
        let (mut when, mut sizes) = (When::Between(1, u64::MAX), (0, u64::MAX));
        while self.takes("@") {
            match self.takes("size") {
                true if point.has_size => sizes = self.range()?,
                true => return Err(format!("calls of {} have no size", point.name)),
                false => when = self.when()?,
            }
        }
        self.expect("=")?;
        let what = self.what(point)?;
        self.blanks();
        if self.rest.starts_with([';', '\n', '\r', '#']) || self.rest.is_empty() {
            Ok(Rule { point: point.name, sizes, when, what, seen: 0 })
        } else {
            Err("something follows the action".to_owned())
        }
    }

    fn when(&mut self) -> Result<When, String> {
        if self.takes("every") {
            return match self.number()? {
                0 => Err("every 0th call is none".to_owned()),
                period => Ok(When::Every(period)),
            };
        }
        let (first, last) = self.range()?;
        if first == 0 {
            return Err("calls are counted from 1".to_owned());
        }
        Ok(When::Between(first, last))
    }

    /// A number, a range, or an open range.
    fn range(&mut self) -> Result<(u64, u64), String> {
        let first = self.number()?;
        let last = match self.takes("..") {
            false => first,
            true if self.rest.starts_with(|c: char| c.is_ascii_digit()) => self.number()?,
            true => u64::MAX,
        };
        if last < first { Err(format!("{first} to {last} are none")) } else { Ok((first, last)) }
    }

    fn failure(&mut self) -> Result<Failure, String> {
        self.expect("(")?;
        let name = self.word()?;
        let place = CODES.iter().position(|code| *code == name);
        let code = place.ok_or_else(|| format!("no code is called {name}"))? as u32 + 1;
        self.expect(",")?;
        let message = self.text()?;
        self.expect(")")?;
        Ok(Failure { code, message })
    }

    fn in_brackets(&mut self) -> Result<u64, String> {
        self.expect("(")?;
        let number = self.number()?;
        self.expect(")")?;
        Ok(number)
    }

    fn what(&mut self, point: &Point) -> Result<What, String> {
        let word = self.word()?;
        let action = match word.as_str() {
            "delay" => return Ok(What::Delay(Duration::from_millis(self.in_brackets()?))),
            "fail" => Action::Fail(self.failure()?),
            "oom" => {
                let message = format!("planned: no memory is left for {}", point.name);
                Action::Fail(Failure::new(RESOURCE_EXHAUSTED, message))
            }
            "event_error" => Action::EventError(self.failure()?),
            "wrong_struct_size" => Action::WrongStructSize,
            "null" => Action::Null,
            "hang" => Action::Hang,
            "abort" => Action::Abort,
            "exit" => {
                let status = self.in_brackets()?;
                Action::Exit(i32::try_from(status).map_err(|_| "a status is at most 255".to_owned())?)
            }
            other => return Err(format!("no action is called {other}")),
        };
        let fits = match action {
            Action::Fail(_) => point.may_fail,
            Action::EventError(_) => point.has_event,
            Action::WrongStructSize => point.may_fail && point.is_call,
            Action::Null => point.has_object,
            Action::Hang | Action::Abort | Action::Exit(_) => true,
        };
        if fits { Ok(What::Act(action)) } else { Err(format!("`{word}` means nothing at {}", point.name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_say_which_calls_they_mean() {
        let text = "
            # the second, the fourth to the sixth, every third, all
            PJRT_Client_Compile@2 = fail(INTERNAL, \"no \\\"good\\\"\")   # a comment
            LoadedExecutable_Execute@4..6 = oom; Buffer_ToHostBuffer @every 3=hang
            Run = delay(5) ; Run = delay(7); Run@2.. = abort;Run@3 = exit(4)
        ";
        let mut plan = Plan::parse(text).expect("a plan");
        let mut next = |point: &str| plan.next(point, 1);
        let compiles: Vec<_> = (1..4).map(|_| next("PJRT_Client_Compile").1).collect();
        let refused = Action::Fail(Failure::new(INTERNAL, "no \"good\""));
        assert_eq!(compiles, [None, Some(refused), None]);
        let mut meant = |point| (1..10).filter(|_| next(point).1.is_some()).collect::<Vec<_>>();
        assert_eq!(meant("PJRT_LoadedExecutable_Execute"), [4, 5, 6]);
        assert_eq!(meant("PJRT_Buffer_ToHostBuffer"), [3, 6, 9]);
        assert!(meant("PJRT_Event_Await").is_empty());
        // Delays add up; of the actions the first counts.
        let wait = Duration::from_millis(12);
        assert_eq!([next("Run"), next("Run"), next("Run")].map(|(delay, _)| delay), [wait; 3]);
        assert_eq!(next("Run").1, Some(Action::Abort));
    }

    #[test]
    fn rules_count_the_calls_of_their_sizes() {
        let mut plan = Plan::parse("Client_Compile@size 2..@2 = oom; Run@1@size 5 = hang").expect("a plan");
        let compiles = [3, 1, 2, 7].map(|size| plan.next("PJRT_Client_Compile", size).1.is_some());
        assert_eq!(compiles, [false, false, true, false]);
        let runs = [4, 5, 5].map(|size| plan.next("Run", size).1.is_some());
        assert_eq!(runs, [false, true, false]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (text, words) in [
            ("Client_Compiles = hang", "no function is called Client_Compiles"),
            ("Client_Compile = hangs", "no action is called hangs"),
            ("Client_Compile = fail(INTERN, \"x\")", "no code is called INTERN"),
            ("Client_Compile = fail(INTERNAL)", "`,` is missing"),
            ("Client_Compile = fail(INTERNAL, \"x)", "has no end"),
            ("Client_Compile@0 = hang", "counted from 1"),
            ("Client_Compile@3..2 = hang", "3 to 2 are none"),
            ("Event_Await@size 2 = hang", "have no size"),
            ("Client_Compile@every 0 = hang", "every 0th"),
            ("Client_Compile hang", "`=` is missing"),
            ("Client_Compile = hang now", "something follows"),
            ("Client_Compile = event_error(INTERNAL, \"x\")", "means nothing at PJRT_Client_Compile"),
            ("Buffer_Destroy = null", "means nothing"),
            ("Run = wrong_struct_size", "means nothing"),
            ("Error_Message = fail(INTERNAL, \"x\")", "means nothing"),
            ("Client_Compile = delay(99999999999999999999)", "too large"),
            ("Run = hang; = hang", "a word is missing"),
        ] {
            let error = Plan::parse(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(Plan::parse(" \n;; # nothing\n"), Ok(Plan::none()));
    }
}
