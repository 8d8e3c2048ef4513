//! Bodies recorded from closures: loops, branches, reductions, sorts; what they capture and refuse.

use std::sync::Arc;

use fuseline::embed::{Call, Session, StreamHandle, ValueHandle};
use fuseline::fusion::Scalar;
use fuseline::fusion::op::Comparison;
use fuseline::fusion::op::attrs::{self, IndexDimensionNumbers};
use fuseline::fusion::program::Program;
use fuseline::{
    DType, Engine, Literal, OpCode, Result, Shape, Site, Tensor, TensorType, pjrt::bytes_of, unchecked,
};

use crate::support::{self, close, everywhere, on_all_tiers, vector, warm_up};

// ----- loops -----

#[test]
fn a_loop_stops_where_its_data_says() {
    everywhere(|engine| {
        let stream = engine.stream();
        for start in [27i64, 1, 97] {
            // The number of Collatz steps: no bound is known beforehand.
            let (n, steps) = stream.while_loop(
                (engine.tensor(&[start], &[])?, engine.scalar(0i64)),
                |(n, _)| n.not_equal(&engine.scalar(1i64)),
                |(n, steps)| {
                    let odd = (&n % 2)?.equal(&engine.scalar(1i64))?;
                    let next = odd.select(&((&n * 3)? + 1)?, &(&n / 2)?)?;
                    Ok((next, (steps + 1)?))
                },
            )?;
            let expected = |mut n: i64| {
                let mut steps = 0i64;
                while n != 1 {
                    n = if n % 2 == 1 { 3 * n + 1 } else { n / 2 };
                    steps += 1;
                }
                steps
            };
            assert_eq!((n.item::<i64>()?, steps.item::<i64>()?), (1, expected(start)));
        }
        Ok(())
    });
}

#[test]
fn loops_nest_and_capture_at_every_depth() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[1.0, 2.0]);
        let weight = vector(engine, &[0.5, -0.25]);
        // Inside the inner loop: a tensor from outside, values of the outer loop, numbers, and the
        // loop's own values.
        let sum = stream.for_range(0..3, x.clone(), |i, outer| {
            let step = (i.convert(DType::F32)? + 1.0)?;
            let inner = stream.for_range(0..2, engine.tensor(&[0.0f32, 0.0], &[2])?, |j, inner| {
                let j = j.convert(DType::F32)?;
                inner + (((&outer * &weight)? * &step)? + (j * 0.125)?)?
            })?;
            outer + inner
        })?;
        let mut expected = [1.0f32, 2.0];
        for i in 0..3 {
            let outer = expected;
            for j in 0..2 {
                for (place, weight) in [0.5f32, -0.25].into_iter().enumerate() {
                    expected[place] += outer[place] * weight * (i as f32 + 1.0) + j as f32 * 0.125;
                }
            }
        }
        close(&sum.to_vec::<f32>()?, &expected, 1e-6);
        // The same tensors can be used afterwards.
        close(&(x + weight)?.to_vec::<f32>()?, &[1.5, 1.75], 0.0);
        Ok(())
    });
}

/// A result may come from outside, be a number, be carried through, or change position.
#[test]
fn any_value_can_be_returned() {
    everywhere(|engine| {
        let stream = engine.stream();
        let (a, b) = (vector(engine, &[1.0, 2.0]), vector(engine, &[3.0, 4.0]));
        let [left, right] = stream.for_range(0..3, [a.clone(), b.clone()], |_, [a, b]| Ok([b, a]))?;
        assert_eq!((left.to_vec::<f32>()?, right.to_vec::<f32>()?), (vec![3.0, 4.0], vec![1.0, 2.0]));
        let outside = stream.for_range(0..3, a.clone(), |_, _| Ok(b.clone()))?;
        assert_eq!(outside.to_vec::<f32>()?, [3.0, 4.0]);
        let never = stream.for_range(3..3, a.clone(), |_, _| Ok(b.clone()))?;
        assert_eq!(never.to_vec::<f32>()?, [1.0, 2.0]);
        let number = stream.for_range(0..1, engine.scalar(1.0f32), |_, _| Ok(engine.scalar(7.0f32)))?;
        assert_eq!(number.item::<f32>()?, 7.0);
        let forever = stream.while_loop(a.clone(), |_| Ok(engine.scalar(false)), Ok)?;
        assert_eq!(forever.to_vec::<f32>()?, [1.0, 2.0]);
        Ok(())
    });
}

#[test]
fn what_is_made_from_nothing_is_made_on_the_stream_of_a_placeholder() {
    everywhere(|engine| {
        let before = engine.counters().ops;
        let y = engine.stream().for_range(0..2, vector(engine, &[1.0, 2.0, 3.0]), |_, x| {
            let stream = x.on_stream();
            let places = stream.iota(DType::F32, &[3], 0)?;
            let ones = stream.splat(Literal::scalar(1.0f32), &[3])?;
            let uploaded = stream.tensor(&[10.0f32, 20.0, 30.0], &[3])?;
            (((x + places)? + ones)? + uploaded)? + stream.full(0.5f32, &[3])?
        })?;
        assert_eq!(y.to_vec::<f32>()?, [24.0, 47.0, 70.0]);
        assert_eq!(engine.counters().ops - before, 1, "all of it is one op");
        Ok(())
    });
}

/// Composites work on placeholders like on other tensors.
#[test]
fn composites_are_recorded_inside() {
    everywhere(|engine| {
        let x = engine.tensor(&[0.5f32, -1.0, 2.0, 0.0, 1.0, -2.0], &[2, 3])?;
        let step = |x: &Tensor| -> Result<Tensor> {
            fuseline::nn::softmax(&fuseline::nn::gelu(x)?, -1)? + fuseline::nn::relu(x)?
        };
        let looped = engine.stream().for_range(0..3, x.clone(), |_, x| step(&x))?;
        let unrolled = step(&step(&step(&x)?)?)?;
        close(&looped.to_vec::<f32>()?, &unrolled.to_vec::<f32>()?, 1e-5);
        Ok(())
    });
}

#[test]
fn bounds_may_be_computed() {
    everywhere(|engine| {
        let lengths = engine.tensor(&[2i64, 5, 3], &[3])?;
        let end = lengths.max(&[0])?;
        let start = engine.scalar(1i64);
        let product =
            engine.stream().for_between(&start, &end, engine.scalar(1i64), |i, product| product * i)?;
        assert_eq!(product.item::<i64>()?, 24);
        Ok(())
    });
}

#[test]
fn a_scan_is_its_steps_one_after_the_other() {
    everywhere(|engine| {
        // A recurrent cell: two states, two inputs, two results of different shapes.
        let xs = engine.tensor(&(0..12).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>(), &[4, 3])?;
        let gates = engine.tensor(&[1.0f32, -1.0, 0.5, 2.0], &[4])?;
        let w = engine.tensor(&(0..9).map(|i| (i as f32 * 1.3).cos() * 0.5).collect::<Vec<_>>(), &[3, 3])?;
        let start = (vector(engine, &[0.1, 0.2, 0.3]), engine.scalar(0.0f32));
        type State = (Tensor, Tensor);
        let step = |(h, sum): State, (x, gate): State| -> Result<(State, State)> {
            let next = ((h.matmul(&w)? + x)? * &gate)?.tanh()?;
            let sum = (sum + next.sum(&[0])?)?;
            Ok(((next.clone(), sum.clone()), (next, sum)))
        };
        for back in [false, true] {
            let mut state = start.clone();
            let mut results = vec![None; 4];
            let order: Vec<usize> = if back { (0..4).rev().collect() } else { (0..4).collect() };
            for place in order {
                let at = place as i64;
                let x = xs.slice(&[at, 0], &[at + 1, 3], &[1, 1])?.reshape(&[3])?;
                let gate = gates.slice(&[at], &[at + 1], &[1])?.reshape(&[])?;
                let (next, result) = step(state, (x, gate))?;
                (state, results[place]) = (next, Some(result));
            }
            let stream = engine.stream();
            let given = (xs.clone(), gates.clone());
            let (end, along) = match back {
                false => stream.scan(start.clone(), given, step)?,
                true => stream.scan_back(start.clone(), given, step)?,
            };
            assert_eq!((along.0.dims(), along.1.dims()), (&[4, 3][..], &[4][..]));
            close(&end.0.to_vec::<f32>()?, &state.0.to_vec::<f32>()?, 1e-5);
            close(&[end.1.item()?], &[state.1.item()?], 1e-5);
            let (rows, sums): (Vec<_>, Vec<_>) = results.into_iter().flatten().unzip();
            let rows: Vec<f32> = rows.iter().flat_map(|row| row.to_vec::<f32>().unwrap()).collect();
            let sums: Vec<f32> = sums.iter().map(|sum| sum.item().unwrap()).collect();
            close(&along.0.to_vec::<f32>()?, &rows, 1e-5);
            close(&along.1.to_vec::<f32>()?, &sums, 1e-5);
        }
        Ok(())
    });
}

#[test]
fn scans_of_nothing_and_inside_of_loops() {
    everywhere(|engine| {
        let stream = engine.stream();
        let none = engine.tensor(&[] as &[f32], &[0, 2])?;
        let (end, along) =
            stream.scan(engine.scalar(5i32), none, |count, x| Ok(((count + 1.0)?, (x.sum(&[0])?, x))))?;
        assert_eq!(end.item::<i32>()?, 5);
        assert_eq!((along.0.dims(), along.1.dims()), (&[0][..], &[0, 2][..]));
        assert!(along.1.to_vec::<f32>()?.is_empty());
        // A running sum of running sums; the buffers of the inner scan belong to the outer loop.
        let x = vector(engine, &[1.0, 2.0, 3.0]);
        let sums = stream.for_range(0..2, x, |_, x| {
            let start = x.on_stream().zeros(DType::F32, &[])?;
            let (_, sums) = stream.scan(start, x, |sum, x| {
                let sum = (sum + x)?;
                Ok((sum.clone(), sum))
            })?;
            Ok(sums)
        })?;
        assert_eq!(sums.to_vec::<f32>()?, [1.0, 4.0, 10.0]);
        Ok(())
    });
}

// ----- branches -----

#[test]
fn one_branch_is_done() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[1.0, -4.0]);
        let offset = vector(engine, &[10.0, 20.0]);
        for (negative, expected) in [(true, [12.0, 25.0]), (false, [1.0, 2.0])] {
            let sum = x.sum(&[0])?;
            let zero = engine.scalar(0.0f32);
            let pred = if negative { sum.less(&zero)? } else { sum.greater(&zero)? };
            let (y, which) = stream.cond(
                &pred,
                x.clone(),
                |x| Ok((((x.abs()? + &offset)? + 1.0)?, x.on_stream().zeros(DType::I32, &[])?)),
                |x| Ok((x.abs()?.sqrt()?, engine.scalar(1i32))),
            )?;
            close(&y.to_vec::<f32>()?, &expected, 1e-6);
            assert_eq!(which.item::<i32>()?, i32::from(!negative));
        }
        // Branches that ignore their operands, or have none.
        let pred = engine.scalar(false);
        let y = stream.cond(&pred, (), |()| Ok(x.clone()), |()| Ok(offset.clone()))?;
        assert_eq!(y.to_vec::<f32>()?, [10.0, 20.0]);
        Ok(())
    });
}

#[test]
fn an_index_without_a_branch_takes_the_last() {
    everywhere(|engine| {
        let x = vector(engine, &[1.0, 4.0]);
        let offset = vector(engine, &[0.5, 0.25]);
        for index in [0, 1, 2, 3, -1, i32::MIN, i32::MAX] {
            let which = engine.tensor(&[index], &[])?;
            let y = engine.stream().switch(
                &which,
                x.clone(),
                &[&|x| x.neg(), &|x| x + &offset, &|x| (x * 2.0)? - &offset],
            )?;
            let expected = match index {
                0 => [-1.0, -4.0],
                1 => [1.5, 4.25],
                _ => [1.5, 7.75],
            };
            assert_eq!(y.to_vec::<f32>()?, expected, "index {index}");
        }
        Ok(())
    });
}

#[test]
fn branches_in_loops_in_branches() {
    everywhere(|engine| {
        let stream = engine.stream();
        let limit = engine.scalar(10.0f32);
        let grow = |x: Tensor| {
            stream.while_loop(
                x,
                |x| x.less(&limit),
                |x| {
                    let even = (&x % 2.0)?.equal(&x.on_stream().constant(Literal::scalar(0.0f32))?)?;
                    stream.cond(&even, x, |x| x + 3.0, |x| x * 2.0)
                },
            )
        };
        for (start, expected) in [(1.0f32, 10.0), (4.0, 14.0), (11.0, -11.0)] {
            let x = engine.tensor(&[start], &[])?;
            let y = stream.cond(&x.less(&limit)?, x, grow, |x| x.neg())?;
            assert_eq!(y.item::<f32>()?, expected, "from {start}");
        }
        Ok(())
    });
}

// ----- functions of scalars -----

#[test]
fn several_operands_are_reduced_at_once() {
    everywhere(|engine| {
        let x = engine.tensor(&[3.0f32, 9.0, 9.0, 7.0, -1.0, 7.5], &[2, 3])?;
        let places = engine.stream().iota(DType::I32, &[2, 3], 1)?;
        let inits = (engine.scalar(f32::NEG_INFINITY), engine.scalar(i32::MAX));
        let (largest, place) = Tensor::reduce_with(&(x.clone(), places), &inits, &[-1], |(a, i), (b, j)| {
            let first = (a.greater(&b)? | (a.equal(&b)? & i.less(&j)?)?)?;
            Ok((first.select(&a, &b)?, first.select(&i, &j)?))
        })?;
        assert_eq!(largest.to_vec::<f32>()?, [9.0, 7.5]);
        assert_eq!(place.to_vec::<i32>()?, x.argmax(1)?.to_vec::<i32>()?);
        // With a number, which is a constant of the function.
        let zero = engine.scalar(0.0f32);
        let sums = Tensor::reduce_with(&x, &zero, &[0, 1], |a, b| a.abs()?.maximum(&(b.abs()? * 1.0)?))?;
        assert_eq!(sums.item::<f32>()?, 9.0);
        Ok(())
    });
}

#[test]
fn windows_maps_sorts_and_scatters_take_closures() {
    everywhere(|engine| {
        let x = vector(engine, &[3.0, 1.0, 4.0, 1.0, 5.0, 9.0]);
        let names = engine.tensor(&[0i32, 1, 2, 3, 4, 5], &[6])?;
        let zero = engine.scalar(0.0f32);
        let window = Tensor::reduce_window_with(&x, &zero, &[3], &[2], &[(1, 0)], |a, b| a + b)?;
        assert_eq!(window.to_vec::<f32>()?, [4.0, 6.0, 15.0]);
        let mapped = Tensor::map_with(&[x.clone(), x.clone()], |[a, b]| (a * b)? - 0.5)?;
        assert_eq!(mapped.to_vec::<f32>()?, [8.5, 0.5, 15.5, 0.5, 24.5, 80.5]);
        let (sorted, order) =
            Tensor::sort_with(&(x.clone(), names.clone()), -1, true, |(a, _), (b, _)| a.less(&b))?;
        assert_eq!(sorted.to_vec::<f32>()?, [1.0, 1.0, 3.0, 4.0, 5.0, 9.0]);
        assert_eq!(order.to_vec::<i32>()?, [1, 3, 0, 2, 4, 5]);
        // By two keys: the second one decides ties.
        let rows = vec![(&x % 2.0)?, x.clone()];
        let by_two = Tensor::sort_with(&rows, 0, false, |a, b| {
            a[0].less(&b[0])? | (a[0].equal(&b[0])? & a[1].greater(&b[1])?)?
        })?;
        assert_eq!(by_two[1].to_vec::<f32>()?, [4.0, 9.0, 5.0, 3.0, 1.0, 1.0]);
        let dims = IndexDimensionNumbers {
            collapsed: &[0],
            index_map: &[0],
            index_vector: 1,
            ..IndexDimensionNumbers::default()
        };
        let places = engine.tensor(&[5i32, 5, 9, 0], &[4, 1])?;
        let updates = (vector(engine, &[1.0, 2.0, 3.0, 4.0]), engine.tensor(&[10i32, 20, 30, 40], &[4])?);
        let (sums, largest) =
            // A write out of range is skipped.
            unchecked(|| {
                Tensor::scatter_with(&(x.clone(), names), &places, &updates, dims, |(a, i), (b, j)| {
                    Ok(((a + b)?, i.maximum(&j)?))
                })
            })?;
        assert_eq!(sums.to_vec::<f32>()?, [7.0, 1.0, 4.0, 1.0, 5.0, 12.0]);
        assert_eq!(largest.to_vec::<i32>()?, [40, 1, 2, 3, 4, 20]);
        let source = vector(engine, &[10.0, 20.0]);
        let spread = x.select_and_scatter_with(
            &source,
            &zero,
            &[3],
            &[3],
            &[(0, 0)],
            |a, b| a.greater_equal(&b),
            |a, b| a + b,
        )?;
        assert_eq!(
            spread.to_vec::<f32>()?,
            x.max_pool_gradient(&source, &[3], &[3], &[(0, 0)])?.to_vec::<f32>()?
        );
        Ok(())
    });
}

#[test]
fn functions_of_scalars_inside_of_loops() {
    everywhere(|engine| {
        let stream = engine.stream();
        let zero = engine.scalar(0.0f32);
        let y = stream.for_range(0..2, vector(engine, &[1.0, 2.0, 3.0]), |_, x| {
            let norm = Tensor::reduce_with(&x, &zero, &[0], |a, b| a.abs()?.maximum(&b.abs()?))?;
            let sorted = Tensor::sort_with(&x, 0, false, |a, b| a.greater(&b))?;
            sorted / norm
        })?;
        close(&y.to_vec::<f32>()?, &[1.0, 2.0 / 3.0, 1.0 / 3.0], 1e-6);
        // A function of scalars inside another.
        let z = Tensor::map_with(&vector(engine, &[2.0, 3.0]), |x| {
            let powers = (x.on_stream().splat(Literal::scalar(1.0f32), &[3])? * x)?;
            Tensor::reduce_with(&powers, &engine.scalar(1.0f32), &[0], |a, b| a * b)
        })?;
        assert_eq!(z.to_vec::<f32>()?, [8.0, 27.0]);
        // Loops, sorts and branches inside of functions of scalars.
        let x = vector(engine, &[2.0, 3.0]);
        let z = Tensor::map_with(&x, |x| {
            let one = x.on_stream().constant(Literal::scalar(1.0f32))?;
            stream.for_range(0..3, one, |_, power| power * &x)
        })?;
        assert_eq!(z.to_vec::<f32>()?, [8.0, 27.0]);
        let z = Tensor::sort_with(&x, 0, true, |a, b| Tensor::map_with(&[a, b], |[a, b]| a.greater(&b)))?;
        assert_eq!(z.to_vec::<f32>()?, [3.0, 2.0]);
        let small = engine.scalar(0.5f32);
        let z = Tensor::reduce_with(&x, &zero, &[0], |a, b| {
            let (low, high) = stream.cond(&a.less(&b)?, (a, b), Ok, |(a, b)| Ok((b, a)))?;
            high + (low * &small)?
        })?;
        assert!([4.0, 3.5].contains(&z.item::<f32>()?), "in either order");
        Ok(())
    });
}

// ----- where ops go -----

#[test]
fn what_depends_on_nothing_inside_is_done_once_outside() {
    on_all_tiers(support::config, |engine| {
        let (x, w) = (vector(engine, &[1.0, 2.0]), vector(engine, &[3.0, 4.0]));
        engine.synchronize()?;
        let before = engine.counters().ops;
        let y = engine.stream().for_range(0..5, x, |_, x| x + (&w * &w)?)?;
        engine.synchronize()?;
        assert_eq!(engine.counters().ops - before, 2, "the product and the loop");
        assert_eq!(y.to_vec::<f32>()?, [46.0, 82.0]);
        Ok(())
    });
}

/// If an operand belongs to a body, the stream of the call does not matter.
#[test]
fn operands_decide_whatever_the_receiver_is() {
    everywhere(|engine| {
        let other = engine.new_stream();
        let offset = other.tensor(&[1.0f32, 2.0], &[2])?.neg()?;
        let y = other.for_range(0..3, vector(engine, &[0.0, 0.0]), |i, x| {
            // The first operand belongs to another stream, to this one, to the inner body, and to
            // the outer one.
            let a = offset.add(&x)?;
            engine.stream().for_between(&engine.scalar(0i32), &i, a, |_, a| x.add(&a))
        })?;
        let mut expected = [0.0f32, 0.0];
        for i in 0..3 {
            for (place, offset) in [-1.0, -2.0].into_iter().enumerate() {
                expected[place] += offset + i as f32 * expected[place];
            }
        }
        assert_eq!(y.to_vec::<f32>()?, expected);
        Ok(())
    });
}

#[test]
fn closures_may_use_threads() {
    everywhere(|engine| {
        let x = vector(engine, &[1.0, 2.0]);
        let parts: Vec<Tensor> = (0..4).map(|part| vector(engine, &[part as f32, 1.0])).collect();
        let y = engine.stream().for_range(0..3, x, |_, x| {
            let terms: Vec<Result<Tensor>> = std::thread::scope(|scope| {
                let spawned: Vec<_> = parts
                    .iter()
                    .map(|part| (part, &x))
                    .map(|(part, x)| scope.spawn(move || (x * 0.25)? + part))
                    .collect();
                spawned.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            terms.into_iter().try_fold(x.on_stream().zeros(DType::F32, &[2])?, |sum, term| sum + term?)
        })?;
        assert_eq!(y.to_vec::<f32>()?, [19.0, 14.0]);
        Ok(())
    });
}

/// Bodies that several threads record at the same time are independent.
#[test]
fn threads_record_bodies_side_by_side() {
    on_all_tiers(support::config, |engine| {
        let shared = vector(engine, &[1.0, 1.0]);
        let results: Vec<Result<Vec<f32>>> = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..4)
                .map(|thread| {
                    let shared = &shared;
                    scope.spawn(move || {
                        let mut last = Vec::new();
                        for round in 0..8 {
                            let x = vector(engine, &[thread as f32, round as f32]);
                            let y = engine.stream().for_range(0..3, x, |i, x| {
                                std::thread::yield_now();
                                (x + shared)? + i.convert(DType::F32)?
                            })?;
                            last = y.to_vec::<f32>()?;
                        }
                        Ok(last)
                    })
                })
                .collect();
            spawned.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (thread, result) in results.into_iter().enumerate() {
            assert_eq!(result?, [thread as f32 + 6.0, 13.0]);
        }
        Ok(())
    });
}

// ----- what is compiled -----

#[test]
fn a_steady_loop_around_loops_compiles_nothing() {
    on_all_tiers(support::config, |engine| {
        let stream = engine.stream();
        let step = |x: Tensor, rate: f64, rounds: i32| -> Result<Tensor> {
            let target = (&x * 0.5)?;
            let x = stream.for_range(0..rounds, x, |_, x| {
                let small = x.abs()?.max(&[0])?.less(&engine.scalar(rate as f32))?;
                let x = (&x - (((&x - &target)? * rate)? + 0.25)?)?;
                stream.cond(&small, x, |x| x * (1.0 + rate), |x| x - rate)
            })?;
            Tensor::sort_with(&x, 0, false, |a, b| a.less(&b))
        };
        let mut x = vector(engine, &[1.0, 2.0]);
        let mut rate = 1.0;
        warm_up(engine, || {
            rate *= 0.5;
            x = step(x.clone(), rate, 3)?;
            x.wait()
        })?;
        let before = engine.counters();
        for round in 1..20 {
            x = step(x, 1.0 / f64::from(round), round)?;
            x.wait()?;
        }
        let after = engine.counters().since(&before);
        let found = (after.interpreted, after.compiles, after.misses);
        assert_eq!(found, (0, 0, 0), "numbers and counts are lifted");
        // A number in a function of scalars is part of the function.
        let scaled = |factor: f64| Tensor::map_with(&x, |a| a * factor)?.wait();
        warm_up(engine, || scaled(2.0))?;
        let before = engine.counters();
        scaled(2.0)?;
        assert_eq!(engine.counters().since(&before).misses, 0);
        warm_up(engine, || scaled(3.0))?;
        assert_eq!(engine.counters().since(&before).misses, 1);
        Ok(())
    });
}

#[test]
fn a_captured_program_has_its_bodies() {
    everywhere(|engine| {
        let stream = engine.stream();
        let x = vector(engine, &[3.0, 1.0, 2.0]);
        let w = x.neg()?;
        let (outputs, program) = engine.capture("loops", || {
            let (end, sums) = stream.scan(engine.scalar(0.5f32), x.clone(), |sum, x| {
                let sum = (sum + x)?;
                let sum = stream.cond(&sum.greater(&engine.scalar(2.0f32))?, sum, |a| a * 0.5, Ok)?;
                Ok((sum.clone(), sum))
            })?;
            let which = end.convert(DType::I32)?;
            let y = stream.switch(&which, sums, &[&|y| y + &w, &|y| y * 2.0, &|y| y.sqrt()])?;
            let y = stream.while_loop(
                y,
                |y| y.max(&[0])?.less(&engine.scalar(9.0f32)),
                |y| stream.for_range(0..2, y, |_, y| (y * 1.5)? - &w),
            )?;
            let sorted = Tensor::sort_with(&y, 0, true, |a, b| a.greater(&b))?;
            let squares = Tensor::map_with(&sorted, |a| &a * &a)?;
            let sum = Tensor::reduce_with(&squares, &engine.scalar(0.0f32), &[0], |a, b| a + b)?;
            Ok(vec![sorted, sum])
        })?;
        let back = Program::parse(&program.to_json())?;
        assert_eq!(back, program);
        for other in [Engine::reference(), engine.clone()] {
            let prepared = other.prepare(Arc::new(back.clone()))?;
            let results = prepared.results()?;
            assert_eq!(prepared.compare(&results), Some(Vec::new()));
            close(&results[0].to_vec::<f32>()?, &outputs[0].to_vec::<f32>()?, 1e-5);
        }
        Ok(())
    });
}

// ----- the interface for frameworks -----

fn recorded(session: &Session, on: StreamHandle, call: Call<'_>) -> Result<ValueHandle> {
    Ok(session.record(on, call)?.remove(0).id)
}

/// `for i in 0..3 { x = if i < 2 { x * rate + w } else { -x } }`, where the branches capture values
/// of the loop and from outside, and a sum with a number in its function.
#[test]
fn a_framework_records_bodies_by_the_same_calls() {
    everywhere(|engine| {
        let session = Session::on(engine.clone());
        let stream = session.open_stream()?;
        let ty = TensorType::of(DType::F32, &[2])?;
        let (i32s, f32s) = (TensorType::scalar(DType::I32), TensorType::scalar(DType::F32));
        let site = |line: u32| Site::Host(format!("model.py:{line}").into());
        let mut values = Vec::new();
        let mut keep = |value: ValueHandle| {
            values.push(value);
            value
        };
        let start = keep(session.upload(stream, &ty, bytes_of(&[1.0f32, 2.0]))?);
        let w = keep(session.upload(stream, &ty, bytes_of(&[10.0f32, 20.0]))?);
        let zero = keep(session.scalar(stream, Scalar::new(0i32))?);
        let less = attrs::compare_for(Comparison::Lt, DType::I32);

        let condition = session.begin_body(OpCode::While, site(1))?;
        let (i, _) =
            (keep(session.placeholder(condition, &i32s)?), keep(session.placeholder(condition, &ty)?));
        let end = keep(session.scalar(condition, Scalar::new(3i32))?);
        let more =
            keep(recorded(&session, condition, Call::new(OpCode::Compare, &[i, end]).with(less.clone()))?);

        let body = session.begin_body(OpCode::While, site(1))?;
        let (i, x) = (keep(session.placeholder(body, &i32s)?), keep(session.placeholder(body, &ty)?));
        let two = keep(session.constant(body, Literal::scalar(2i32), site(2))?);
        let early = keep(recorded(&session, body, Call::new(OpCode::Compare, &[i, two]).with(less))?);
        let (yes, no) = (session.begin_body(OpCode::If, site(2))?, session.begin_body(OpCode::If, site(2))?);
        let rate = keep(session.scalar(yes, Scalar::new(0.5f32))?);
        let repeat = attrs::broadcast_in_dim(Shape::new(&[2])?, &[]);
        let rate = keep(recorded(&session, yes, Call::new(OpCode::BroadcastInDim, &[rate]).with(repeat))?);
        // If an operand belongs to a body, the named stream does not matter.
        let scaled = keep(recorded(&session, stream, Call::new(OpCode::Multiply, &[x, rate]))?);
        let sum = keep(recorded(&session, yes, Call::new(OpCode::Add, &[w, scaled]))?);
        let negated = keep(recorded(&session, no, Call::new(OpCode::Negate, &[x]))?);
        let early = [early];
        let call = Call::new(OpCode::If, &early).at(site(2));
        let next = keep(session.record_with(body, call, &[(yes, &[sum]), (no, &[negated])])?.remove(0).id);
        let one = keep(session.constant(body, Literal::scalar(1i32), site(3))?);
        let after = keep(recorded(&session, body, Call::new(OpCode::Add, &[i, one]))?);
        let (operands, returns) = ([zero, start], [after, next]);
        let call = Call::new(OpCode::While, &operands).at(site(1));
        let made = session.record_with(stream, call, &[(condition, &[more]), (body, &returns)])?;
        assert_eq!(made.iter().map(|made| made.ty.clone()).collect::<Vec<_>>(), [i32s, ty.clone()]);
        let made: Vec<ValueHandle> = made.iter().map(|made| keep(made.id)).collect();
        assert_eq!(session.read(made[0])?.to_vec::<i32>()?, [3]);
        assert_eq!(session.read(made[1])?.to_vec::<f32>()?, [-15.25, -30.5]);

        // A function that is ended separately serves any number of calls, also in a trace.
        let function = session.begin_body(OpCode::Reduce, site(4))?;
        let a = keep(session.placeholder(function, &f32s)?);
        let b = keep(session.placeholder(function, &f32s)?);
        let half = keep(session.scalar(function, Scalar::new(0.5f32))?);
        let b_half = keep(recorded(&session, function, Call::new(OpCode::Multiply, &[b, half]))?);
        let larger = keep(recorded(&session, function, Call::new(OpCode::Maximum, &[a, b_half]))?);
        let function = [session.end_body(function, &[larger])?];
        let init = keep(session.constant(stream, Literal::scalar(-1.0f32), Site::Unknown)?);
        let operands = [w, init];
        let reduce = || Call {
            bodies: &function,
            ..Call::new(OpCode::Reduce, &operands).with(attrs::dimensions(&[0]))
        };
        let largest = keep(recorded(&session, stream, reduce())?);
        assert!(session.read(largest)?.to_vec::<f32>()?[0] >= 5.0);
        let trace = session.begin_trace()?;
        let operands = [
            keep(session.placeholder(trace, &ty)?),
            keep(session.constant(trace, Literal::scalar(-1.0f32), Site::Unknown)?),
        ];
        let call = Call { operands: &operands, ..reduce() };
        let traced = keep(recorded(&session, trace, call)?);
        let traced = session.end_trace(trace, "largest", &[traced])?;
        let called = keep(session.call(stream, traced, &[w], Site::Unknown)?.remove(0).id);
        assert_eq!(session.read(called)?, session.read(largest)?);
        session.forget(traced)?;
        for value in values {
            session.release(value)?;
        }
        assert_eq!(session.live_values(), 0);
        session.close_stream(stream)
    });
}

#[test]
fn bodies_at_the_seam_are_refused_like_others() {
    let session = Session::reference(support::config()).unwrap();
    let run = || -> Result<()> {
        let stream = session.open_stream()?;
        let ty = TensorType::scalar(DType::F32);
        let says = |error: fuseline::Error, words: &[&str]| {
            let text = error.to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        };
        let outside = session.upload(stream, &ty, &1f32.to_le_bytes())?;
        let body = session.begin_body(OpCode::Map, Site::Host("model.py:7".into()))?;
        let x = session.placeholder(body, &ty)?;
        let call = || Call::new(OpCode::Add, &[]).at(Site::Host("model.py:8".into()));
        let error = session.record(body, Call { operands: &[x, outside], ..call() }).unwrap_err();
        says(error, &["add: rhs, f32[]", "outside of a body called at model.py:7", "(at model.py:8)"]);
        says(session.read(x).unwrap_err(), &["a host read", "a body called at model.py:7", "no data"]);
        says(session.synchronize(body, None).unwrap_err(), &["synchronize", "a body called at model.py:7"]);
        let operands = [outside];
        let map = Call::new(OpCode::Map, &operands).with(attrs::dimensions(&[]));
        says(
            session.record_with(stream, map.clone(), &[(stream, &[x])]).unwrap_err(),
            &["map", "is not a body"],
        );
        says(session.end_body(stream, &[x]).unwrap_err(), &["end_body", "is not a body"]);
        // A refused call has changed nothing, and an ended body stays ended.
        let twice = session.record(body, Call { operands: &[x, x], ..call() })?.remove(0).id;
        let made = session.record_with(stream, map.clone(), &[(body, &[twice])])?.remove(0).id;
        assert_eq!(session.read(made)?.to_vec::<f32>()?, [2.0]);
        says(
            session.record(stream, Call { operands: &[x, x], ..call() }).unwrap_err(),
            &["lhs", "has ended"],
        );
        says(session.end_body(body, &[x]).unwrap_err(), &["was already released"]);
        // A loop condition that uses a value from outside cannot be ended separately; closing a
        // body abandons it.
        let body = session.begin_body(OpCode::While, Site::Unknown)?;
        let y = session.placeholder(body, &ty)?;
        let sum = session.record(body, Call { operands: &[y, outside], ..call() })?.remove(0).id;
        says(
            session.end_body(body, &[sum]).unwrap_err(),
            &["uses a value from outside, f32[]", "record_with"],
        );
        let body = session.begin_body(OpCode::While, Site::Unknown)?;
        let z = session.placeholder(body, &ty)?;
        session.close_stream(body)?;
        says(
            session.record(stream, Call { operands: &[z, z], ..call() }).unwrap_err(),
            &["a body, which has ended"],
        );
        let trace = session.begin_trace()?;
        let body = session.begin_body(OpCode::Map, Site::Unknown)?;
        let error = session.record_with(trace, map, &[(body, &[outside])]).unwrap_err();
        says(error, &["map: a trace takes only bodies that use no value from outside", "end_body"]);
        [outside, x, twice, made, y, sum, z].into_iter().try_for_each(|value| session.release(value))
    };
    run().unwrap();
    assert_eq!(session.live_values(), 0);
}
