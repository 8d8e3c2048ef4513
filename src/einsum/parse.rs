//! Parses the notation and matches it with the operands.

use fuseline_fusion::{OpErrorKind, Site};
use fuseline_runtime::Result;
use smallvec::SmallVec;

use super::{Name, refused};
use crate::handle::Tensor;

/// The names of one operand or of the result, as written.
struct Subscripts {
    /// Letters before `...`, or all of them.
    before: Vec<char>,
    /// Letters after `...`; `None` if there is none.
    after: Option<Vec<char>>,
}

/// An equation, as written.
pub(super) struct Equation {
    text: String,
    operands: Vec<Subscripts>,
    /// `None` for an equation without `->`.
    result: Option<Subscripts>,
}

/// An equation applied to certain operands.
pub(super) struct Named {
    /// The name of each dimension of each operand.
    pub(super) operands: Vec<SmallVec<[Name; 6]>>,
    /// The names of the result.
    pub(super) result: SmallVec<[Name; 6]>,
}

impl Subscripts {
    fn parse(text: &str, equation: &str, site: &Site) -> Result<Subscripts> {
        let letters = |text: &str| -> Result<Vec<char>> {
            match text.chars().find(|letter| !letter.is_ascii_alphabetic()) {
                None => Ok(text.chars().collect()),
                Some(other) => {
                    let given = format!("the equation {equation:?} contains {other:?}");
                    let rule = "it may contain letters, `...` once per operand, `,` between \
                                operands and `->` before the result";
                    Err(refused(OpErrorKind::Attribute, given, rule, site))
                }
            }
        };
        match text.split_once("...") {
            None => Ok(Subscripts { before: letters(text)?, after: None }),
            Some((before, after)) => {
                Ok(Subscripts { before: letters(before)?, after: Some(letters(after)?) })
            }
        }
    }

    fn letters(&self) -> impl Iterator<Item = char> + '_ {
        self.before.iter().chain(self.after.iter().flatten()).copied()
    }

    /// The names of all dimensions, with `unnamed` of them in place of `...`.
    fn names(&self, unnamed: usize) -> SmallVec<[Name; 6]> {
        let mut names: SmallVec<[Name; 6]> = self.before.iter().copied().map(Name::Letter).collect();
        if let Some(after) = &self.after {
            names.extend((0..unnamed).rev().map(Name::Unnamed));
            names.extend(after.iter().copied().map(Name::Letter));
        }
        names
    }
}

impl Equation {
    pub(super) fn parse(text: &str, site: &Site) -> Result<Equation> {
        let written: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
        let (operands, result) = match written.split_once("->") {
            None => (written.as_str(), None),
            Some((operands, result)) => (operands, Some(Subscripts::parse(result, text, site)?)),
        };
        let operands: Vec<Subscripts> =
            operands.split(',').map(|part| Subscripts::parse(part, text, site)).collect::<Result<_>>()?;
        if let Some(result) = &result {
            let mut seen = Vec::new();
            for letter in result.letters() {
                let wrong = if seen.contains(&letter) {
                    "twice in the result"
                } else if !operands.iter().any(|operand| operand.letters().any(|other| other == letter)) {
                    "in the result and in no operand"
                } else {
                    seen.push(letter);
                    continue;
                };
                let given = format!("the equation {text:?} has `{letter}` {wrong}");
                let rule = "a letter of the result must be in an operand, and only once in the result";
                return Err(refused(OpErrorKind::Attribute, given, rule, site));
            }
        }
        Ok(Equation { text: text.to_owned(), operands, result })
    }

    /// Names the dimensions of operands.
    pub(super) fn name(&self, operands: &[&Tensor], site: &Site) -> Result<Named> {
        if operands.len() != self.operands.len() {
            let given = format!("the equation is {:?}, but there are {} operands", self.text, operands.len());
            let rule = format!("it describes {}, separated by commas", self.operands.len());
            return Err(refused(OpErrorKind::Arity, given, rule, site));
        }
        let mut names = Vec::with_capacity(operands.len());
        let mut widest = 0;
        for (place, (subscripts, operand)) in self.operands.iter().zip(operands).enumerate() {
            let letters = subscripts.letters().count();
            let unnamed =
                operand.rank().checked_sub(letters).filter(|&rest| rest == 0 || subscripts.after.is_some());
            let Some(unnamed) = unnamed else {
                let given = format!("operand {place} of {:?} is {}", self.text, operand.ty());
                let rule = match subscripts.after {
                    None => format!("it must have {letters} dimensions, one per letter"),
                    Some(_) => format!("it must have at least {letters} dimensions"),
                };
                return Err(refused(OpErrorKind::Shape, given, rule, site));
            };
            widest = widest.max(unnamed);
            names.push(subscripts.names(unnamed));
        }
        let result = match &self.result {
            Some(result) if result.after.is_none() && widest > 0 => {
                let given =
                    format!("the equation is {:?}, and `...` stands for {widest} dimensions", self.text);
                let rule = "the result must have `...` too, because these dimensions are not summed";
                return Err(refused(OpErrorKind::Attribute, given, rule, site));
            }
            Some(result) => result.names(widest),
            None => self.implied(widest),
        };
        Ok(Named { operands: names, result })
    }

    /// The result of an equation without `->`.
    fn implied(&self, unnamed: usize) -> SmallVec<[Name; 6]> {
        let all = || self.operands.iter().flat_map(Subscripts::letters);
        let mut once: Vec<char> =
            all().filter(|&letter| all().filter(|&other| other == letter).count() == 1).collect();
        once.sort_unstable();
        (0..unnamed).rev().map(Name::Unnamed).chain(once.into_iter().map(Name::Letter)).collect()
    }
}
