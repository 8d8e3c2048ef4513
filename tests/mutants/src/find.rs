//! Generates the mutations of a source file.
//!
//! The operators are those of cargo-mutants and of Offutt et al., "An Experimental Determination of
//! Sufficient Mutant Operators" (1996): relational, logical and arithmetic replacement, deletion of
//! unary operators and of statements, conditions that are always true or false, and functions that
//! return a default value. Tests, macro invocations and constants have no mutations.

use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Stmt, UnOp};

/// The placeholder for the condition "this mutant is active" in [`Mutation::replacement`].
pub(crate) const ACTIVE: &str = "MUTANT_IS_ACTIVE";

/// One change of one place.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    /// The file, relative to the workspace.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// The enclosing function and the change.
    pub(crate) description: String,
    /// The bytes of the file that are replaced.
    pub(crate) range: Range<usize>,
    /// The new text: the mutated and the original code, and [`ACTIVE`] to choose between them.
    pub(crate) replacement: String,
}

impl Mutation {
    /// Identifies the mutation in reports and in the results of earlier runs.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}: {}", self.file, self.line, self.description)
    }
}

/// All mutations of a file.
///
/// # Errors
///
/// If the text is not Rust.
pub(crate) fn mutations(file: &str, text: &str) -> syn::Result<Vec<Mutation>> {
    let tree = syn::parse_file(text)?;
    let mut generator = Generator { file, text, functions: Vec::new(), found: Vec::new() };
    generator.visit_file(&tree);
    Ok(generator.found)
}

struct Generator<'a> {
    file: &'a str,
    text: &'a str,
    functions: Vec<String>,
    found: Vec<Mutation>,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let has = |name: &str| match &attribute.meta {
            syn::Meta::List(list) => list.tokens.to_string().contains(name),
            _ => false,
        };
        path.is_ident("test") || (path.is_ident("cfg") && ["test", "loom", "shuttle"].into_iter().any(has))
    })
}

/// Whether a condition binds a name, so that it cannot become a value.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(paren) => has_let(&paren.expr),
        _ => false,
    }
}

/// The operator that a mutation puts in place of another.
fn replacement_operator(operator: &BinOp) -> Option<&'static str> {
    Some(match operator {
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::Add(_) => "-",
        BinOp::Sub(_) | BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::BitAnd(_) => "|",
        BinOp::BitOr(_) | BinOp::BitXor(_) => "&",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::BitAndAssign(_) => "|=",
        _ => return None,
    })
}

/// Default values of a return type.
fn default_values(output: &syn::ReturnType) -> Vec<String> {
    let syn::ReturnType::Type(_, of) = output else { return vec!["()".to_owned()] };
    let syn::Type::Path(path) = &**of else { return Vec::new() };
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let all = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
    match last.ident.to_string().as_str() {
        "bool" => all(&["true", "false"]),
        "usize" | "u8" | "u16" | "u32" | "u64" | "u128" | "i8" | "i16" | "i32" | "i64" | "i128" => {
            all(&["0", "1"])
        }
        "Option" => all(&["None"]),
        "Vec" | "String" | "SmallVec" => all(&["Default::default()"]),
        "Result" => all(&["Ok(Default::default())"]),
        _ => Vec::new(),
    }
}

impl Generator<'_> {
    fn source(&self, span: Span) -> &str {
        &self.text[span.byte_range()]
    }

    fn add(&mut self, span: Span, range: Range<usize>, change: &str, replacement: String) {
        let description = format!("{}: {change}", self.functions.join("::"));
        let line = span.start().line;
        self.found.push(Mutation { file: self.file.to_owned(), line, description, range, replacement });
    }

    /// Replaces an expression by another one of its type.
    fn replace(&mut self, span: Span, change: &str, mutated: &str) {
        let original = self.source(span);
        let replacement = format!("(if {ACTIVE} {{ {mutated} }} else {{ {original} }})");
        self.add(span, span.byte_range(), change, replacement);
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block, attributes: &[syn::Attribute]) {
        if is_test(attributes) || signature.constness.is_some() {
            return;
        }
        self.functions.push(signature.ident.to_string());
        let start = body.brace_token.span.open().byte_range().end;
        for value in default_values(&signature.output) {
            let change = format!("returns {value} at once");
            let replacement = format!(" if {ACTIVE} {{ return {value}; }}");
            self.add(signature.ident.span(), start..start, &change, replacement);
        }
        visit::visit_block(self, body);
        self.functions.pop();
    }

    fn condition(&mut self, condition: &Expr, values: &[&str]) {
        if !has_let(condition) {
            for value in values {
                self.replace(condition.span(), &format!("a condition is {value}"), value);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Generator<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block, &item.attrs);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body, &item.attrs);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let is_debug = item
            .trait_
            .as_ref()
            .is_some_and(|(_, path, _)| path.segments.last().is_some_and(|last| last.ident == "Debug"));
        if !is_debug && !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if let Some(other) =
            replacement_operator(&binary.op).filter(|_| !has_let(&binary.left) && !has_let(&binary.right))
        {
            let (left, right) = (self.source(binary.left.span()), self.source(binary.right.span()));
            let (mutated, change) = (
                format!("{left} {other} {right}"),
                format!("{} becomes {other}", self.source(binary.op.span())),
            );
            self.replace(binary.span(), &change, &mutated);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
            let operand = self.source(unary.expr.span()).to_owned();
            let change = format!("{} is removed", self.source(unary.op.span()));
            self.replace(unary.span(), &change, &operand);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_if(&mut self, item: &'ast syn::ExprIf) {
        self.condition(&item.cond, &["true", "false"]);
        visit::visit_expr_if(self, item);
    }

    fn visit_expr_while(&mut self, item: &'ast syn::ExprWhile) {
        self.condition(&item.cond, &["false"]);
        visit::visit_expr_while(self, item);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, &["true", "false"]);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(Expr::MethodCall(_) | Expr::Call(_), Some(_)) = statement {
            let span = statement.span();
            let original = self.source(span).to_owned();
            self.add(
                span,
                span.byte_range(),
                "a statement is removed",
                format!("if !{ACTIVE} {{ {original} }}"),
            );
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
}

#[cfg(test)]
mod tests {
    use super::mutations;

    #[test]
    fn operators_apply_outside_tests_and_constants() {
        let text = "
            const N: usize = 1 + 2;
            fn f(a: bool, b: usize) -> bool { if !a { g(b); } b < 3 && a }
            #[cfg(test)] mod tests { fn h() -> bool { 1 == 2 } }
        ";
        let found = mutations("lib.rs", text).unwrap();
        let descriptions: Vec<_> = found.iter().map(|mutation| mutation.description.as_str()).collect();
        assert_eq!(
            descriptions,
            [
                "f: returns true at once",
                "f: returns false at once",
                "f: a condition is true",
                "f: a condition is false",
                "f: ! is removed",
                "f: a statement is removed",
                "f: && becomes ||",
                "f: < becomes <=",
            ]
        );
        let last = found.last().unwrap();
        assert_eq!(&text[last.range.clone()], "b < 3");
        assert_eq!(last.replacement, "(if MUTANT_IS_ACTIVE { b <= 3 } else { b < 3 })");
    }
}
