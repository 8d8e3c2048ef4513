//! `fuseline ops`: the op table for people, for programs, and as a page of the documentation.

use fuseline::fusion::attr::{AttrDef, AttrKind, Presence};
use fuseline::fusion::op::{Bodies, BodyDef, Effect, OPS, OpDef, Operands};
use serde_json::{Value, json};

use crate::Status;
use crate::cli::OpsArgs;
use crate::failure::Failure;
use crate::text::{count, say};

pub(crate) fn run(args: &OpsArgs, out: &mut String) -> Result<Status, Failure> {
    let rows = match &args.name {
        Some(name) => vec![row(name)?],
        None => sorted(),
    };
    if args.json {
        let document: Vec<Value> = rows.iter().map(|def| as_json(def)).collect();
        say!(out, "{:#}", Value::from(document));
    } else if args.markdown {
        page(&rows, out);
    } else if args.name.is_some() {
        rows.iter().for_each(|def| in_full(def, out));
    } else {
        list(&rows, out);
    }
    Ok(Status::Good)
}

/// Rows sorted by dialect, then by name.
fn sorted() -> Vec<&'static OpDef> {
    let mut rows: Vec<&OpDef> = OPS.iter().collect();
    rows.sort_by_key(|def| (def.dialect != OPS[0].dialect, def.name));
    rows
}

/// Finds a row by name, with or without the dialect.
fn row(name: &str) -> Result<&'static OpDef, Failure> {
    if let Some(code) = fuseline::OpCode::from_name(name) {
        return Ok(code.def());
    }
    let bare = name.rsplit('.').next().unwrap_or(name);
    let near: Vec<&str> = sorted().iter().map(|def| def.name).filter(|known| is_near(bare, known)).collect();
    let hint = if near.is_empty() {
        "`fuseline ops` lists all of them".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Err(Failure::Input(format!("there is no op {name:?}; {hint}")))
}

/// Whether a typed name resembles a known one: it is part of it, or one edit away.
fn is_near(typed: &str, known: &str) -> bool {
    let shorter = typed.len().min(known.len());
    let front = typed.bytes().zip(known.bytes()).take_while(|(a, b)| a == b).count();
    let back = typed.bytes().rev().zip(known.bytes().rev()).take_while(|(a, b)| a == b).count();
    let one_off = typed.len().abs_diff(known.len()) <= 1 && front + back + 1 >= typed.len().max(known.len());
    shorter >= 3 && (known.contains(typed) || one_off)
}

fn list(rows: &[&'static OpDef], out: &mut String) {
    let width = rows.iter().map(|def| def.code.qualified().len()).max().unwrap_or(0);
    for def in rows {
        say!(out, "{:width$}  {}", def.code.qualified(), def.summary);
    }
    say!(out);
    say!(out, "{}. `fuseline ops NAME` shows operands, attributes, types and rule.", count(rows.len(), "op"));
}

fn presence(def: &AttrDef) -> &'static str {
    match def.presence {
        Presence::Required => "",
        Presence::Optional => "; optional",
        Presence::FromResult => "; given by the result type",
    }
}

/// The values of an attribute. For a group of attributes, these are the kinds of its members.
fn kind(kind: AttrKind) -> String {
    match kind {
        AttrKind::Struct(group) => {
            let fields: Vec<String> =
                group.fields.iter().map(|field| format!("{} ({})", field.name, field.kind)).collect();
            format!("a group of {}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn bodies(def: &'static OpDef) -> Vec<(String, &'static BodyDef)> {
    match &def.bodies {
        Bodies::Fixed(bodies) => bodies.iter().map(|body| (body.name.to_owned(), body)).collect(),
        Bodies::Many(body) => vec![(format!("{}...", body.name), body)],
    }
}

fn effect(def: &OpDef) -> Option<&'static str> {
    match def.effect {
        Effect::Pure => None,
        Effect::Ordered => Some("ordered: it runs in program order, in a region of its own"),
    }
}

fn in_full(def: &'static OpDef, out: &mut String) {
    say!(out, "{}", def.code.qualified());
    say!(out, "  {}", def.summary);
    say!(out);
    say!(out, "operands   {}", def.operand_words());
    say!(out, "types      {} (of the first operand, or of the result)", def.dtypes);
    for attr in def.attrs {
        say!(out, "attribute  {}: {}{}", attr.name, kind(attr.kind), presence(attr));
    }
    for (name, body) in bodies(def) {
        say!(out, "body       {name}: {}", body.rule);
    }
    say!(out, "rule       {}", def.rule);
    if let Some(effect) = effect(def) {
        say!(out, "effect     {effect}");
    }
    say!(out, "fusion     {:?}", def.fusibility);
    say!(out, "rounding   {:?}", def.rounding);
}

fn as_json(def: &'static OpDef) -> Value {
    let attrs = def.attrs.iter().map(|attr| {
        json!({
            "name": attr.name,
            "kind": kind(attr.kind),
            "required": attr.presence == Presence::Required,
            "from_result": attr.presence == Presence::FromResult,
        })
    });
    let bodies = bodies(def).into_iter().map(|(name, body)| json!({"name": name, "rule": body.rule}));
    json!({
        "op": def.code.qualified(),
        "number": def.code.number(),
        "summary": def.summary,
        "operands": def.operand_words(),
        "dtypes": def.dtypes.iter().map(|dtype| dtype.to_string()).collect::<Vec<_>>(),
        "attributes": attrs.collect::<Vec<_>>(),
        "bodies": bodies.collect::<Vec<_>>(),
        "rule": def.rule,
        "ordered": def.effect == Effect::Ordered,
        "fusion": format!("{:?}", def.fusibility),
        "rounding": format!("{:?}", def.rounding),
    })
}

/// The largest number of columns of the page.
const MAX_COLUMNS: usize = 100;

/// Text in lines of at most [`MAX_COLUMNS`], unless a single word is longer. Further lines are
/// indented if the text is an item of a list. No line begins with a word that Markdown would take
/// for the mark of an item.
fn wrap(text: &str) -> String {
    let indent = if text.starts_with("- ") { "\n  " } else { "\n" };
    let (mut lines, mut column) = (String::new(), 0);
    let mut words = text.split(' ').peekable();
    while let Some(first) = words.next() {
        let mut word = first.to_owned();
        while let Some(mark) = words.next_if(|next| ["-", "+", "*"].contains(next)) {
            word = format!("{word} {mark}");
        }
        let width = word.chars().count();
        if column == 0 {
            column = width;
        } else if column + 1 + width > MAX_COLUMNS {
            lines.push_str(indent);
            column = indent.len() - 1 + width;
        } else {
            lines.push(' ');
            column += 1 + width;
        }
        lines.push_str(&word);
    }
    lines
}

/// The page of the documentation.
fn page(rows: &[&'static OpDef], out: &mut String) {
    let mut item = |text: String| say!(out, "{}", wrap(&text));
    item("# Ops\n".to_owned());
    item(
        "This page lists every op that Fuseline records, as the op table (`fusion/src/op/table/`) has it. \
         The command `fuseline ops --markdown` writes the page. *Types* are the element types of the \
         first operand, or of the result if there are no operands.\n"
            .to_owned(),
    );
    for def in rows {
        item(format!("## {}\n", def.code.qualified()));
        item(format!("{}\n", def.summary));
        match def.operands {
            Operands::Fixed([]) => item("- operands: none".to_owned()),
            _ => item(format!("- operands: {}", def.operand_words())),
        }
        item(format!("- types: {}", def.dtypes));
        for attr in def.attrs {
            item(format!("- attribute `{}`: {}{}", attr.name, kind(attr.kind), presence(attr)));
        }
        for (name, body) in bodies(def) {
            item(format!("- body `{name}`: {}", body.rule));
        }
        item(format!("- rule: {}", def.rule));
        if let Some(effect) = effect(def) {
            item(format!("- effect: {effect}"));
        }
        item(String::new());
    }
    // The file ends in a single newline.
    out.pop();
}
