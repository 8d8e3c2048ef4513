//! Modules as text: the output of JAX and MLIR is read in all its spellings, errors have a
//! position, and no text does harm.
#![allow(missing_docs, reason = "a test")]

#[path = "../../tests/support/exported.rs"]
mod exported;

use std::fmt::Write as _;
use std::sync::Arc;

use exported::{check, exported};
use fuseline_fusion::text::{Problem, TextError, TextModule};
use fuseline_fusion::{CustomOp, DType, Literal, OpCode};
use fuseline_interp as interp;
use fuseline_testgen::{Entropy as _, Seeded};

fn parse(text: &str) -> TextModule {
    TextModule::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A function without operands that returns the value `%0` of this type, made by `body`.
fn source(body: &str, ty: &str) -> String {
    format!("func.func @main() -> {ty} {{\n{body}\nreturn %0 : {ty}\n}}")
}

#[test]
fn functions_from_jax_compute_what_jax_computed() {
    let exported = exported();
    assert!(exported.len() >= 16);
    for function in &exported {
        let inputs: Vec<Arc<Literal>> = function.inputs.iter().cloned().map(Arc::new).collect();
        let results = interp::run_body(interp::Arithmetic::REFERENCE, function.module.main(), &inputs)
            .unwrap_or_else(|error| panic!("{}: {error}", function.name));
        for (index, (actual, expected)) in results.iter().zip(&function.outputs).enumerate() {
            check(actual, expected)
                .unwrap_or_else(|error| panic!("{}, output {index}: {error}", function.name));
        }
        assert_eq!(results.len(), function.outputs.len());
    }
}

#[test]
fn constants_are_read_in_every_spelling() {
    let bytes: String = (0..20).map(|i| if i % 3 == 1 { "01" } else { "00" }).collect();
    let wide = format!("dense<\"0x{bytes}\">");
    let flags: Vec<bool> = (0..20).map(|i| i % 3 == 1).collect();
    let f32s = |dims: &[u64], data: &[f32]| Literal::from_slice(dims, data).expect("fits");
    let cases: Vec<(&str, &str, Literal)> = vec![
        ("dense<1.0>", "f32", Literal::scalar(1f32)),
        ("dense<-1.5e-3>", "f32", Literal::scalar(-1.5e-3f32)),
        ("dense<0x7F800000>", "f32", Literal::scalar(f32::INFINITY)),
        ("dense<0x3F80>", "bf16", Literal::scalar(half::bf16::ONE)),
        ("dense<[1.0, 0xFF800000]>", "2xf32", f32s(&[2], &[1.0, f32::NEG_INFINITY])),
        ("dense<[[1.0, 2.0], [3.0, 4.0]]>", "2x2xf32", f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0])),
        ("dense<\"0x0000803F00000040\">", "2xf32", f32s(&[2], &[1.0, 2.0])),
        ("dense<\"0x0000803F\">", "2xf32", f32s(&[2], &[1.0, 1.0])),
        ("dense<2.0>", "1x3xf32", f32s(&[1, 3], &[2.0; 3])),
        ("dense<[]>", "0xf32", f32s(&[0], &[])),
        ("dense<>", "2x0xf32", f32s(&[2, 0], &[])),
        ("dense<[[], []]>", "2x0xf32", f32s(&[2, 0], &[])),
        ("dense<3.0>", "0xf32", f32s(&[0], &[])),
        ("dense<[true, false]>", "2xi1", Literal::from_slice(&[2], &[true, false]).expect("fits")),
        ("dense<true>", "2xi1", Literal::from_slice(&[2], &[true, true]).expect("fits")),
        ("dense<\"0xFF\">", "2xi1", Literal::from_slice(&[2], &[true, true]).expect("fits")),
        // One byte per element, as in MLIR since 2025, and one bit per element, as before.
        (&wide, "20xi1", Literal::from_slice(&[20], &flags).expect("fits")),
        ("dense<\"0x922409\">", "20xi1", Literal::from_slice(&[20], &flags).expect("fits")),
        (
            "dense<[-128, 127, 255, 0x80]>",
            "4xi8",
            Literal::from_slice(&[4], &[-128i8, 127, -1, -128]).expect("fits"),
        ),
        ("dense<[0, 255]>", "2xui8", Literal::from_slice(&[2], &[0u8, 255]).expect("fits")),
        ("dense<18446744073709551615>", "ui64", Literal::scalar(u64::MAX)),
        ("dense<-9223372036854775808>", "i64", Literal::scalar(i64::MIN)),
        ("dense<[1, -8, 15]>", "3xi4", narrow(DType::I4, &[1, 0xF8, 0xFF])),
        ("dense<\"0x0108FF\">", "3xi4", narrow(DType::I4, &[1, 0xF8, 0xFF])),
        ("dense<[1.0, -448.0]>", "2xf8E4M3FN", narrow(DType::F8E4M3FN, &[0x38, 0xFE])),
        ("dense<(1.0,-2.0)>", "complex<f32>", Literal::scalar(num_complex::Complex::new(1f32, -2.0))),
        (
            "dense<[(1.0,2.0), (0x7FC00000,0.0)]>",
            "2xcomplex<f32>",
            Literal::from_bytes(
                fuseline_fusion::TensorType::of(DType::C64, &[2]).expect("small"),
                [1f32, 2.0, f32::NAN, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect(),
            )
            .expect("fits"),
        ),
    ];
    for (spelling, ty, wanted) in cases {
        let ty = format!("tensor<{ty}>");
        for line in [
            format!("%0 = stablehlo.constant {spelling} : {ty}"),
            format!(
                "%0 = stablehlo.constant {{mhlo.sharding = \"{{replicated}}\"}} {spelling} : {ty} loc(#loc1)"
            ),
            format!("%0 = \"stablehlo.constant\"() <{{value = {spelling} : {ty}}}> : () -> {ty}"),
            format!("%0 = \"stablehlo.constant\"() {{value = {spelling} : {ty}}} : () -> {ty} // and so on"),
        ] {
            let module = parse(&source(&line, &ty));
            let results = interp::run_body(interp::Arithmetic::REFERENCE, module.main(), &[]).expect("runs");
            assert_eq!(*results[0], wanted, "{line}");
        }
    }
}

fn narrow(dtype: DType, bytes: &[u8]) -> Literal {
    let ty = fuseline_fusion::TensorType::of(dtype, &[bytes.len() as u64]).expect("small");
    Literal::from_bytes(ty, bytes.to_vec()).expect("in range")
}

/// Each pair has the same meaning in two forms.
#[test]
fn forms_of_an_op_are_read_as_the_same() {
    let pairs = [
        (
            "stablehlo.compare LT, %x, %x : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>",
            "\"stablehlo.compare\"(%x, %x) <{comparison_direction = #stablehlo<comparison_direction LT>, \
             compare_type = #stablehlo<comparison_type FLOAT>}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>",
        ),
        (
            "stablehlo.slice %x [0:2, 0:3:2] : (tensor<2x3xf32>) -> tensor<2x2xf32>",
            "\"stablehlo.slice\"(%x) {start_indices = dense<0> : tensor<2xi64>, limit_indices = dense<[2, 3]> : tensor<2xi64>, \
             strides = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<2x2xf32>",
        ),
        (
            "stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>",
            "\"stablehlo.dot_general\"(%x, %x) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], \
             rhs_contracting_dimensions = [1]>}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>",
        ),
        (
            "stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) \
             -> tensor<2xf32>",
            "stablehlo.reduce(%x init: %z) across dimensions = [1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32> \
             reducer(%a: tensor<f32>, %b: tensor<f32>) {\n %s = stablehlo.add %a, %b : tensor<f32>\n stablehlo.return %s : \
             tensor<f32> }",
        ),
        (
            "stablehlo.clamp %z, %x, %z : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>",
            "\"stablehlo.clamp\"(%z, %x, %z) : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>",
        ),
        (
            "stablehlo.negate %x : tensor<2x3xf32>",
            "stablehlo.negate %x : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        ),
        (
            "stablehlo.exponential %x {result_accuracy = #stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>} \
             : tensor<2x3xf32>",
            "\"stablehlo.exponential\"(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        ),
        ("call @f(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>", "stablehlo.negate %x : tensor<2x3xf32>"),
        (
            "\"func.call\"(%x) <{callee = @\"f\"}> : (tensor<2x3xf32>) -> tensor<2x3xf32>",
            "func.call @f(%x) : (tensor<2x3xf32>) -> tensor<2x3xf32>",
        ),
    ];
    for (one, other) in pairs {
        let module = |op: &str| {
            let result = op.rsplit("-> ").next().unwrap_or_default();
            let result = result.split(" reducer").next().unwrap_or(result);
            let result = if op.contains("->") { result } else { "tensor<2x3xf32>" };
            parse(&format!(
                "module @m attributes {{mhlo.num_partitions = 1 : i32}} {{\n\
                 func.func public @main(%x: tensor<2x3xf32> {{mhlo.sharding = \"a, b\", jax.buffer_donor = true}}, \
                 %z: tensor<f32> loc(\"z\")) -> ({result} {{jax.result_info = \"\"}}) {{\n%0 = {op}\nreturn %0 : {result}\n}}\n\
                 func.func private @f(%arg0: tensor<2x3xf32>) -> tensor<2x3xf32> {{\n\
                 %0 = stablehlo.negate %arg0 : tensor<2x3xf32> loc(#loc)\nreturn %0 : tensor<2x3xf32>\n}}\n}} loc(#loc)\n\
                 #loc = loc(unknown)"
            ))
        };
        assert_eq!(module(one).main(), module(other).main(), "{one}\n{other}");
    }
}

#[test]
fn arguments_keep_their_aliases_and_composites_their_names() {
    let module = parse(
        "module @named { func.func @main(%a: tensor<2xf32>, %b: tensor<2xf32> {tf.aliasing_output = 0 : i32}) -> tensor<2xf32> {
           %0 = stablehlo.composite \"my.add\" %a, %b {decomposition = @add, composite_attributes = {n = 1 : i64}, version = 1 : i32}
             : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
           return %0 : tensor<2xf32> }
         func.func private @add(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {
           %0 = stablehlo.add %a, %b : tensor<2xf32>
           return %0 : tensor<2xf32> } }",
    );
    assert_eq!(module.name(), Some("named"));
    assert_eq!(module.aliases(), [None, Some(0)]);
    assert_eq!(module.functions(), 2);
    let nodes = module.main().graph().nodes();
    assert_eq!(nodes.len(), 1);
    let signature = nodes[0].signature();
    assert_eq!((signature.op(), &**signature.attrs().view().name(0)), (OpCode::Composite, "my.add"));
    let body = signature.bodies()[0].graph().nodes();
    assert_eq!((body.len(), body[0].signature().op()), (1, OpCode::Add));
}

// ----- errors -----

/// The error of a function with these lines, the first of which is line 2, and a parameter
/// `%x: tensor<2xf32>`.
fn refused(lines: &str) -> TextError {
    let text = format!(
        "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{\n{lines}\nreturn %x : tensor<2xf32>\n}}"
    );
    TextModule::parse(&text).expect_err(lines)
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let cases = [
        ("%0 = stablehlo.add %x %x : tensor<2xf32>", (2, 23), "expected `:`, found `%x`"),
        ("%0 = stablehlo.add %x, %y : tensor<2xf32>", (2, 24), "%y is not defined before this"),
        ("%0 = stablehlo.add %x : tensor<2xf32>", (2, 6), "add: 1 operand was given; it takes 2 (lhs, rhs)"),
        (
            "%0 = stablehlo.add %x, %x : tensor<3xf32>",
            (2, 29),
            "the declared types are (f32[3], f32[3]), but the values are (f32[2], f32[2])",
        ),
        ("%0 = stablehlo.iota dim = 1 : tensor<2xf32>", (2, 6), "iota: iota_dimension"),
        (
            "%0 = stablehlo.transpose %x, dims = [0] : (tensor<2xf32>) -> tensor<3xf32>",
            (2, 43),
            "transpose is declared to return (f32[3]), but its operands and attributes give (f32[2])",
        ),
        (
            "%0 = stablehlo.frobnicate %x : tensor<2xf32>",
            (2, 6),
            "op \"stablehlo.frobnicate\" is not in the op table",
        ),
        ("%0 = stablehlo.constant dense<1> : tensor<2xf32>", (2, 31), "expected a float such as"),
        (
            "%0 = stablehlo.constant dense<[1.0]> : tensor<2xf32>",
            (2, 31),
            "the list has 1 entries, but the type has 2",
        ),
        ("%0 = stablehlo.constant dense<300> : tensor<2xi8>", (2, 31), "300 does not fit into i8"),
        (
            "%0 = stablehlo.constant dense<1.0> : tensor<2xf31>",
            (2, 47),
            "element type \"f31\" is not supported",
        ),
        (
            "%0 = stablehlo.constant dense<\"0xABC\"> : tensor<2xf32>",
            (2, 31),
            "two hexadecimal digits per byte",
        ),
        (
            "%0 = stablehlo.compare QT, %x, %x : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>",
            (2, 24),
            "expected one of EQ, NE",
        ),
        (
            "%0 = stablehlo.negate %x {speed = 1 : i32} : tensor<2xf32>",
            (2, 27),
            "negate has no attribute speed",
        ),
        (
            "%0 = \"stablehlo.transpose\"(%x) : (tensor<2xf32>) -> tensor<2xf32>",
            (2, 6),
            "transpose needs the attribute permutation",
        ),
        (
            "%0 = \"stablehlo.transpose\"(%x) <{permutation = array<i64: 0>, permutation = array<i64: 0>}> : (tensor<2xf32>) -> tensor<2xf32>",
            (2, 63),
            "the attribute permutation is given twice",
        ),
        ("%x = stablehlo.negate %x : tensor<2xf32>", (2, 1), "%x is defined twice"),
        ("%0, stablehlo.negate %x : tensor<2xf32>", (2, 5), "expected a value, found `stablehlo.negate`"),
        (
            "%0 = \"stablehlo.case\"(%x) ({\n^(%a: tensor<f32>):\n}) : (tensor<2xf32>) -> tensor<2xf32>",
            (3, 2),
            "expected the name of a block, found `(`",
        ),
        ("%0:2 = stablehlo.negate %x : tensor<2xf32>", (2, 8), "2 results are named, but the op has 1"),
        ("%0 = call @g(%x) : (tensor<2xf32>) -> tensor<2xf32>", (2, 11), "there is no function @g"),
        ("%0 = call @main(%x) : (tensor<2xf32>) -> tensor<2xf32>", (2, 11), "@main calls itself"),
        (
            "%0 = stablehlo.exponential %x {result_accuracy = #stablehlo.result_accuracy<atol = 1.0, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<2xf32>",
            (2, 32),
            "exponential has no attribute result_accuracy",
        ),
        (
            "%0 = \"stablehlo.composite\"(%x) <{name = \"a b\", decomposition = @main}> : (tensor<2xf32>) -> tensor<2xf32>",
            (2, 64),
            "@main calls itself",
        ),
        ("\"stablehlo.return\"() : () -> ()\n}\n}", (4, 1), "expected `func.func`, found `}`"),
    ];
    for (lines, place, words) in cases {
        let error = refused(lines);
        assert_eq!((error.line(), error.column()), place, "{error}");
        assert!(error.problem().to_string().contains(words), "{error} does not say {words}");
        // The line is shown with a mark under the position.
        let shown = error.to_string();
        let [_, line, mark] = shown.lines().collect::<Vec<_>>()[..] else { panic!("{shown}") };
        let mark = mark.find('^').expect("a mark");
        assert!(line.get(mark..).is_some(), "{shown}");
    }
}

/// Valid modules that this library does not support are distinguished from invalid ones.
#[test]
fn what_is_not_supported_is_said_as_such() {
    let cases = [
        ("%0 = stablehlo.negate %x : tensor<?xf32>", "dynamic sizes"),
        ("%0 = stablehlo.negate %x : tensor<*xf32>", "unranked tensors"),
        ("%0 = stablehlo.negate %x : tensor<2x!quant.uniform<i8:f32, 1.0>>", "quantized"),
        ("%0 = stablehlo.negate %x : tensor<2xf32, #stablehlo.bounds<3>>", "encodings"),
        ("%0 = \"stablehlo.negate\"(%x) : (tensor<2xf32>) -> !stablehlo.token", "tokens"),
        ("%0 = \"stablehlo.negate\"(%x) : (tensor<2xf32>) -> tuple<tensor<f32>>", "tuples"),
        ("%0 = stablehlo.negate %x : tensor<2xindex>", "index"),
        ("%0 = stablehlo.constant dense_resource<blob> : tensor<2xf32>", "data outside the text"),
        ("cf.br ^bb1", "cf.br"),
        ("%0 = \"stablehlo.negate\"(%x) [^bb1] : (tensor<2xf32>) -> tensor<2xf32>", "between blocks"),
        ("^bb1:", "more than one block"),
    ];
    for (lines, words) in cases {
        let error = refused(lines);
        let unsupported = error.unsupported().unwrap_or_else(|| panic!("{error}"));
        assert!(unsupported.contains(words), "{unsupported} does not say {words}");
    }
    assert!(refused("%0 = stablehlo.add %x").unsupported().is_none());
}

/// Values that a region captures.
#[test]
fn captures_become_operands_carried_values_or_copies() {
    let text = "func.func @main(%p: tensor<i1>, %x: tensor<2xf32>, %n: tensor<i32>) -> (tensor<2xf32>, tensor<i32>) {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %y = stablehlo.negate %x : tensor<2xf32>
      %0 = \"stablehlo.if\"(%p) ({
        \"stablehlo.return\"(%y) : (tensor<2xf32>) -> ()
      }, {
        %a = stablehlo.add %x, %y : tensor<2xf32>
        stablehlo.return %a : tensor<2xf32>
      }) : (tensor<i1>) -> tensor<2xf32>
      %1 = stablehlo.while(%i = %n) : tensor<i32>
      cond {
        %m = stablehlo.multiply %n, %one : tensor<i32>
        %c = stablehlo.compare LT, %i, %m, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %next = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %next : tensor<i32>
      }
      return %0, %1 : tensor<2xf32>, tensor<i32>
    }";
    let module = parse(text);
    let nodes = module.main().graph().nodes();
    let of = |op: OpCode| nodes.iter().find(|node| node.signature().op() == op).expect("it is there");
    // The values in the order of their first use: `%y`, then `%x`.
    let branch = of(OpCode::If);
    assert_eq!(branch.operands().len(), 3);
    assert_eq!(branch.operands()[1], of(OpCode::Negate).results().next().expect("a result"));
    for body in branch.signature().bodies() {
        assert_eq!(body.graph().params(), &branch.signature().operands()[1..]);
    }
    // The bound is carried and returned unused; the constant is a copy.
    let looped = of(OpCode::While);
    assert_eq!((looped.operands().len(), looped.signature().results().len()), (2, 2));
    let [cond, body] = [0, 1].map(|index| looped.signature().bodies()[index].graph());
    assert!(
        [cond, body]
            .iter()
            .all(|graph| graph.nodes().iter().any(|node| node.signature().op() == OpCode::Constant))
    );

    let refused = TextModule::parse(
        "func.func @main(%x: tensor<2xf32>, %z: tensor<f32>) -> tensor<f32> {
           %0 = \"stablehlo.reduce\"(%x, %z) <{dimensions = array<i64: 0>}> ({
           ^bb0(%a: tensor<f32>, %b: tensor<f32>):
             %s = stablehlo.add %a, %z : tensor<f32>
             stablehlo.return %s : tensor<f32>
           }) : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
           return %0 : tensor<f32>
         }",
    );
    let error = refused.expect_err("a reduction sees its arguments only");
    assert_eq!((error.line(), error.column()), (4, 37));
    assert!(error.to_string().contains("can only use its arguments and scalar constants"), "{error}");
}

// ----- hostile input -----

/// Functions that call functions: each level doubles the size when inlined.
fn doubling(levels: usize, body: &str) -> String {
    let mut text = String::from("func.func @main() { call @f0() : () -> ()\nreturn }\n");
    for level in 0..levels {
        let next = level + 1;
        let call = format!("call @f{next}() : () -> ()\n");
        let _ = writeln!(text, "func.func private @f{level}() {{ {call}{call}return }}");
    }
    let _ = writeln!(text, "func.func private @f{levels}() {{ {body}\nreturn }}");
    text
}

#[test]
fn texts_cannot_grow_without_bound() {
    let limits = [
        (doubling(40, ""), "has more than 65536 ops"),
        // Few ops and much data: the constant is stored once, and the encoding of bodies is
        // counted.
        (
            doubling(
                10,
                &format!(
                    "%z = stablehlo.constant dense<0.0> : tensor<f32>\n%c = stablehlo.constant dense<\"0x{}\"> : tensor<8000xf64>",
                    "00".repeat(64_000)
                ),
            ),
            "the module is too large",
        ),
    ];
    for (text, words) in limits {
        let error = TextModule::parse(&text).expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
    }
    // Only text that is read repeatedly.
    let comment = format!("// {}", "a long comment ".repeat(70_000));
    let error = TextModule::parse(&doubling(12, &comment)).expect_err("too long");
    assert!(error.to_string().contains("calls large functions too many times"), "{error}");
    let chain = (0..100).fold(
        String::from("func.func @main() { call @f0() : () -> ()\nreturn }\n"),
        |mut text, level| {
            let _ = writeln!(
                text,
                "func.func private @f{level}() {{ call @f{}() : () -> ()\nreturn }}",
                level + 1
            );
            text
        },
    );
    let error =
        TextModule::parse(&format!("{chain}func.func private @f100() {{ return }}")).expect_err("too deep");
    assert!(error.to_string().contains("calls nest more than 64 deep"), "{error}");

    let nested = |depth: usize| {
        let open = "%0 = \"stablehlo.case\"(%i) ({\n".repeat(depth);
        let close = "stablehlo.return %i : tensor<i32>\n}) : (tensor<i32>) -> tensor<i32>\n".repeat(depth);
        format!("func.func @main(%i: tensor<i32>) {{\n{open}{close}return }}")
    };
    let error = TextModule::parse(&nested(1_000)).expect_err("too deep");
    assert!(error.to_string().contains("regions nest more than 16 deep"), "{error}");
    parse(&nested(16));
    // Brackets are counted without recursion.
    for bracket in ["(", "[", "{", "<", "dense<[", "array<i64: ", "#a<", "\"stablehlo.if\"(%p) ({"] {
        let text = format!("func.func @main() {{ %0 = stablehlo.constant {}", bracket.repeat(200_000));
        let error = TextModule::parse(&text).expect_err("it never ends");
        assert!(error.to_string().len() < 400, "{error}");
    }
}

/// Changes bytes, removes and duplicates parts, and swaps words with others from the same texts.
fn mutated(entropy: &mut Seeded, texts: &[String]) -> String {
    let pick = |entropy: &mut Seeded, below: usize| entropy.draw(below as u32) as usize;
    let index = pick(entropy, texts.len());
    let mut bytes = texts[index].clone().into_bytes();
    // A part of a text: whole functions take long, and most errors are local.
    let words = |text: &str, entropy: &mut Seeded| {
        let words: Vec<String> =
            text.split_inclusive([' ', ',', '(', ')', '<', '>']).map(str::to_owned).collect();
        words[pick(entropy, words.len())].clone()
    };
    for _ in 0..=pick(entropy, 4) {
        if bytes.is_empty() {
            break;
        }
        let at = pick(entropy, bytes.len());
        let end = (at + 1 + pick(entropy, 40)).min(bytes.len());
        match entropy.draw(6) {
            0 => bytes[at] ^= 1 << entropy.draw(8),
            1 => {
                let marks = b"%@#!^\"\\<>(){}[]:=,-+.0x9e\n\t /?*";
                bytes[at] = marks[pick(entropy, marks.len())];
            }
            2 => drop(bytes.drain(at..end)),
            3 => {
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            4 => {
                let other = pick(entropy, texts.len());
                let word = words(&texts[other], entropy);
                bytes.splice(at..end, word.into_bytes());
            }
            _ => bytes.truncate(at),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// X1 and X2, with 2,000 changed texts, or `FUSELINE_TEXTS`.
#[test]
fn hostile_texts_are_refused_with_words() {
    let count = std::env::var("FUSELINE_TEXTS").ok().and_then(|count| count.parse().ok()).unwrap_or(2_000);
    let mut texts: Vec<String> = exported().into_iter().map(|function| function.text).collect();
    texts.extend([
        source("%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>", "tensor<2xf32>"),
        doubling(3, ""),
    ]);
    let (mut refused, mut read) = (0, 0);
    for seed in 0..count {
        let mut entropy = Seeded::new(seed);
        let text = mutated(&mut entropy, &texts);
        match TextModule::parse(&text) {
            Ok(module) => {
                read += 1;
                // An accepted text is a function like any other.
                CustomOp::new("hostile", module.main().clone())
                    .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            }
            Err(error) => {
                refused += 1;
                let words = error.to_string();
                assert!(error.line() > 0 && words.len() < 2_000, "seed {seed}: {words}");
                let empty = matches!(error.problem(), Problem::Other(words) if words.is_empty());
                assert!(!empty, "seed {seed}: {words}");
            }
        }
    }
    assert!(
        refused > count / 3 && read > count / 50,
        "{refused} refused, {read} read: the changes are all alike"
    );
}
