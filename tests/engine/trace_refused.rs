//! Mistakes in bodies recorded from closures: each has its message, and changes nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fuseline::{DType, Engine, Error, Literal, Mode, Origin, Result, Stage, Tensor, TensorTree};

use crate::support::{self, everywhere, on_engines, vector};

/// Checks that a call fails with these words in its message, in this order.
#[track_caller]
fn says<T>(result: Result<T>, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("no error, but {words:?} was expected") };
    let text = error.to_string();
    let mut rest = text.as_str();
    for word in words {
        let Some(place) = rest.find(word) else { panic!("{word:?} is missing in: {text}") };
        rest = &rest[place + word.len()..];
    }
    assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User), "{text}");
    error
}

/// A line of this file.
fn line(line: u32) -> String {
    format!("tests/engine/trace_refused.rs:{line}")
}

#[test]
fn bodies_that_do_not_fit_are_refused() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[1.0, 2.0]);
        let here = line!() + 1;
        let error = stream.for_range(0..3, x.clone(), |_, x| x.sum(&[0]));
        says(
            error,
            &["while: body returns f32[] for carried value 1, which is f32[2]", "broadcast", &line(here)],
        );
        let error = stream.for_range(0..3, x.clone(), |_, x| x.convert(DType::F64));
        says(
            error,
            &["while: body returns f64[2] for carried value 1, which is f32[2]", "convert it to f32"],
        );
        let error = stream.for_range(0..3, vec![x.clone()], |_, x| Ok([x.clone(), x].concat()));
        let words = [
            "while: the body of for_range returns 3 tensors",
            "as many tensors as are carried, which is 2",
            "tests/engine/trace_refused.rs",
        ];
        says(error, &words);
        let error = stream.while_loop(x.clone(), |x| x.greater(&engine.scalar(0.0f32)), Ok);
        says(error, &["while: cond returns [bool[2]]", "it must return one bool[]", "reduce it"]);
        let error = stream.while_loop(x.clone(), |x| x.sum(&[0]), Ok);
        says(error, &["while: cond returns [f32[]]", "compare it"]);
        let yes = engine.scalar(true);
        let error = stream.cond(&yes, x.clone(), Ok, |x| x.sum(&[0]));
        says(
            error,
            &["if: false_branch returns f32[]", "f32[2]", "same types", "tests/engine/trace_refused.rs"],
        );
        let error = stream.cond(&yes, x.clone(), |x| Ok(vec![x]), |_| Ok(vec![]));
        says(error, &["if: false_branch returns 0 values", "it must return 1"]);
        let error = stream.cond(&x, x.clone(), Ok, Ok);
        says(error, &["if: pred is f32[2]", "bool"]);
        let error = stream.switch(&engine.scalar(0i64), x.clone(), &[&|x| x.neg()]);
        says(error, &["case: index is i64[]", "convert it to i32"]);
        let none: &[&dyn Fn(Tensor) -> Result<Tensor>] = &[];
        says(stream.switch(&engine.scalar(0i32), x.clone(), none), &["case: 0 bodies were given"]);
        let zero = engine.scalar(0.0f32);
        let error = Tensor::reduce_with(&x, &zero, &[0], |a, b| a.greater(&b));
        let words =
            ["reduce: the function of reduce_with returns bool[] for operand 0, f32[2]", "convert it to f32"];
        says(error, &words);
        let error =
            Tensor::reduce_with(&vec![x.clone()], &vec![zero.clone()], &[0], |a, b| Ok([a, b].concat()));
        says(error, &["reduce: the function of reduce_with returns 2 values", "which is 1"]);
        let error = Tensor::sort_with(&x, 0, true, |a, b| a - b);
        says(error, &["sort: comparator returns [f32[]]", "one bool[]", "tests/engine/trace_refused.rs"]);
        says(Tensor::sort_with(&x, 1, true, |a, b| a.less(&b)), &["sort: dimension 1 of a tensor of rank 1"]);
        let error = Tensor::map_with(&vec![] as &Vec<Tensor>, |_| Ok(x.clone()));
        says(error, &["map: no tensors were given", "at least one"]);
        let error = stream.scan(zero.clone(), (), |sum, ()| Ok((sum, ())));
        says(error, &["scan: no input tensors were given", "for_range"]);
        let error = stream.scan(zero.clone(), zero.clone(), |sum, x| Ok((sum, x)));
        says(error, &["scan: a scalar, f32[], was given"]);
        let longer = vector(engine, &[1.0; 3]);
        let error = stream.scan(zero.clone(), (x.clone(), longer), |sum, (x, _)| Ok((sum, x)));
        says(
            error,
            &[
                "scan: f32[2] and f32[3] were given",
                "must have the same size",
                "tests/engine/trace_refused.rs",
            ],
        );
        let error = stream.scan(zero.clone(), x.clone(), |_, x| Ok((x.unsqueeze(0)?, ())));
        says(error, &["while: body returns f32[1] for carried value 1, which is f32[]"]);
        let error = stream.scan(vec![zero.clone()], x.clone(), |_, _| Ok((vec![], ())));
        says(error, &["while: the body of scan returns 0 tensors", "which is 1"]);
        // An error inside names the line inside.
        let mut inside = 0;
        let error = stream.for_range(0..3, x.clone(), |_, x| {
            inside = line!() + 1;
            x.matmul(&x.reshape(&[1, 2])?)
        });
        says(error, &["dot_general", &line(inside)]);
        Ok(())
    });
}

#[test]
fn functions_of_scalars_see_nothing_from_outside() {
    everywhere(|engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let zero = engine.scalar(0.0f32);
        let (outside, called) = (engine.tensor(&[2.0f32], &[])?, line!() + 2);
        let mut inside = 0;
        let error = Tensor::reduce_with(&x, &zero, &[0], |a, b| {
            inside = line!() + 1;
            (a * &outside)? + b
        });
        let words = [
            "multiply: rhs, f32[], comes from outside of the function of reduce_with called at",
            &line(called),
            "can only use its parameters, numbers and values computed from them",
            "as one more operand",
            "a.on_stream().constant(..)",
            &line(inside),
        ];
        says(error, &words);
        says(
            Tensor::map_with(&x, |_| Ok(outside.clone())),
            &["map: a value returned, f32[], comes from outside of"],
        );
        // Also if a loop inside captures it.
        let error = Tensor::map_with(&x, |a| engine.stream().for_range(0..2, a, |_, a| a * &outside));
        says(error, &["while:", "f32[], comes from outside of the function of map_with"]);
        let y = Tensor::map_with(&x, |a| &a * a.on_stream().constant(Literal::scalar(2.0f32))?)?;
        assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
        Ok(())
    });
}

/// No op of a body reaches a capture that begins inside, and its values have no data to capture.
#[test]
fn a_capture_inside_of_a_body() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[3.0, 1.0, 2.0]);
        let w = x.neg()?;
        let mut inside = None;
        let z = stream.for_range(0..1, x.clone(), |_, x| {
            inside = Some(engine.capture("inside", || Ok(vec![(&x * 2.0)?])));
            let (_, program) = engine.capture("outside", || Ok(vec![w.abs()?]))?;
            assert_eq!(program.ops.len(), 1);
            x + 1.0
        })?;
        says(inside.unwrap(), &["the body of for_range", "is being recorded and has no data yet"]);
        assert_eq!(z.to_vec::<f32>()?, [4.0, 2.0, 3.0]);
        Ok(())
    });
}

#[test]
fn a_body_cannot_be_read() {
    everywhere(|engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let called = line!() + 2;
        let mut lines = 0;
        let y = engine.stream().for_range(0..2, x, |i, x| {
            let words = ["a host read: the value belongs to the body of for_range called at", &line(called)];
            lines = line!() + 1;
            let error = says(x.to_vec::<f32>(), &words);
            let text = error.to_string();
            for fix in ["return it from the closure", "`while_loop`", "`cond`", "`select`", &line(lines)] {
                assert!(text.contains(fix), "{text}");
            }
            let words = ["the body of for_range", "has no data yet", "tests/engine/trace_refused.rs"];
            says(i.item::<i32>(), &words);
            says(x.to_literal(), &words);
            says(x.wait(), &words);
            says(x.to_literal_for(Duration::from_secs(1)), &words);
            let (sent, arrived) = std::sync::mpsc::channel();
            x.on_ready(move |outcome| sent.send(outcome).unwrap());
            says(arrived.recv().unwrap(), &words[..2]);
            says(x.on_stream().synchronize(), &["synchronize", words[0]]);
            x.on_stream().flush();
            assert!(format!("{x:?}").contains("f32[2]"));
            x.neg()
        })?;
        assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
        Ok(())
    });
}

#[test]
fn placeholders_that_escape_are_refused() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[1.0, 2.0]);
        let (mut escaped, mut half) = (None, None);
        let called = line!() + 1;
        let y = stream.for_range(0..2, x.clone(), |_, inside| {
            (escaped, half) = (Some(inside.clone()), Some(inside.on_stream().scalar(0.5f32)));
            Ok(inside)
        })?;
        let (escaped, half) = (escaped.unwrap(), half.unwrap());
        let ended = ["belonged to the body of for_range called at", &line(called), "which has ended"];
        let fix = "return it from the closure";
        let words = |first| [&[first][..], &ended, &[fix, "tests/engine/trace_refused.rs"]].concat();
        says(escaped.add(&x), &words("add: the stream that it was called on"));
        says(x.add(&escaped), &words("add: rhs, f32[2], "));
        says(stream.for_range(0..2, x.clone(), |_, x| x + &escaped), &words("add: rhs, f32[2], "));
        says(
            stream.for_range(0..2, x.clone(), |_, _| Ok(escaped.clone())),
            &words("while: a value returned, f32[2], "),
        );
        says(stream.for_range(0..2, escaped.clone(), |_, x| Ok(x)), &words("while: operand 1, f32[2], "));
        says(Tensor::map_with(&x, |_| Ok(escaped.clone())), &words("map: a value returned, f32[2], "));
        says(
            escaped.on_stream().zeros(DType::F32, &[]),
            &words("constant: the stream that it was called on"),
        );
        says(
            escaped.to_vec::<f32>(),
            &["a host read: the value", ended[0], ended[1], "which has ended", fix],
        );
        // A number has its value everywhere.
        assert_eq!(half.item::<f32>()?, 0.5);
        assert_eq!(half.on_stream().id(), stream.id());
        // Values of one branch are invalid in the other, and values of the condition in the body.
        let first = std::cell::OnceCell::new();
        let error = stream.cond(
            &engine.scalar(true),
            x.clone(),
            |x| {
                first.set(x.clone()).unwrap();
                Ok(x)
            },
            |x| x + first.get().unwrap(),
        );
        says(error, &["add: rhs, f32[2], belonged to the true branch of cond"]);
        // A body that failed has ended too.
        let mut kept = None;
        let error = stream.for_range(0..2, x.clone(), |_, x| {
            kept = Some(x.clone());
            x.matmul(&x.reshape(&[1, 2])?)
        });
        says(error, &["dot_general"]);
        says(kept.unwrap().neg(), &["negate", "has ended"]);
        assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
        Ok(())
    });
}

#[test]
fn failures_and_panics_inside_leave_the_stream_as_it_was() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[1.0, 2.0]);
        let pending = (&x * 2.0)?;
        stream.synchronize()?;
        let before = engine.counters().ops;
        let failed: Result<Tensor> = stream.for_range(0..2, x.clone(), |_, inside| {
            let _ = (&inside + &pending)?;
            stream.while_loop(inside, |x| x.sum(&[0])?.less(&engine.scalar(1.0f32)), |x| x.reshape(&[3]))
        });
        says(failed, &["reshape"]);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            stream.for_range(0..2, x.clone(), |_, inside| {
                let _ = (&inside + &pending)?;
                Tensor::map_with(&inside, |_| panic!("the user's mistake"))
            })
        }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "the user's mistake");
        stream.synchronize()?;
        assert_eq!(engine.counters().ops, before, "nothing was recorded");
        let y = stream.for_range(0..2, pending, |_, y| y + &x)?;
        assert_eq!(y.to_vec::<f32>()?, [4.0, 8.0]);
        Ok(())
    });
}

#[test]
fn tensors_of_other_engines_and_too_deep_bodies_are_refused() {
    on_engines(support::config, |engine| {
        let other = Engine::reference();
        let (x, foreign) = (vector(engine, &[1.0]), vector(&other, &[1.0]));
        let error = engine.stream().for_range(0..2, x.clone(), |_, x| x + &foreign);
        says(error, &["add: rhs, f32[1],", "another engine", "upload it to this engine"]);
        fn nest(x: Tensor, depth: usize) -> Result<Tensor> {
            match depth {
                0 => x.neg(),
                _ => x.on_stream().for_range(0..1, x, |_, x| nest(x, depth - 1)),
            }
        }
        assert_eq!(nest(x.clone(), 6)?.to_vec::<f32>()?, [-1.0]);
        says(nest(x, 40), &["while: bodies nest 17 deep", "the limit is 16"]);
        Ok(())
    });
}

#[test]
fn a_structure_that_counts_wrong_is_told() {
    struct Odd(Vec<Tensor>, std::cell::Cell<usize>);
    impl TensorTree for Odd {
        fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Odd {
            self.1.set(self.1.get() + 1);
            Odd(self.0.iter().take(self.1.get()).map(f).collect(), std::cell::Cell::new(0))
        }
    }
    let engine = Engine::reference();
    let x = vector(&engine, &[1.0]);
    let odd = Odd(vec![x.clone(), x], std::cell::Cell::new(0));
    says(
        engine.stream().for_range(0..2, odd, |_, odd| Ok(odd)),
        &["Odd", "a different number of tensors than before"],
    );
}

/// On the device an op with bodies is one op, and its failure names the line of the call.
#[test]
fn a_failure_on_the_device_names_the_call() {
    on_engines(
        || support::config().mode(Mode::Debug).check_finite(true),
        |engine| {
            let x = vector(engine, &[1.0, 2.0]);
            let called = line!() + 1;
            let error = engine.stream().for_range(0..3, x, |_, x| (x - 1.5)?.sqrt()).unwrap_err();
            assert!(error.is_non_finite());
            let text = error.to_string();
            assert!(text.contains("while") && text.contains(&line(called)), "{text}");
            Ok(())
        },
    );
}
