//! The functions of `fuseline::nn` against PyTorch's results for the same numbers, in f64 on both
//! devices and in all modes.
//!
//! `data/generate_nn.py` writes the data. For refusals, other element types and modes see `nn.rs`.

use std::collections::HashMap;

use fuseline::nn::{
    self, Attention, CrossEntropy, Layout, Method, Pool, Reduction, Resize, RunningStatistics,
};
use fuseline::{Engine, Mode, Result, Tensor};

use crate::support::in_each_mode;
use crate::support::reference::{Case, cases};

/// A call of a function by its name.
struct Call<'a>(&'a Case);

impl Call<'_> {
    fn reduction(&self) -> Reduction {
        match self.0.settings["reduction"].as_str().unwrap() {
            "none" => Reduction::None,
            "mean" => Reduction::Mean,
            "sum" => Reduction::Sum,
            other => panic!("a reduction {other}"),
        }
    }

    fn pool(&self, layout: Layout) -> Pool {
        let pool = Pool { layout, ..Pool::new(&self.0.sizes("size")) };
        let list = |key: &str, usual: &[usize]| match self.0.settings[key].is_null() {
            true => usual.to_vec(),
            false => self.0.sizes(key),
        };
        Pool {
            stride: list("stride", &pool.stride),
            padding: list("padding", &pool.padding),
            dilation: list("dilation", &pool.dilation),
            ceil_mode: self.0.flag("ceil_mode").unwrap(),
            count_padding: self.0.flag("count_padding").unwrap_or(true),
            ..pool
        }
    }

    fn call(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let one = |result: Result<Tensor>| Ok(vec![result?]);
        let (a, b) = (&x[0], x.get(1));
        let b = || b.unwrap_or_else(|| panic!("{} has one operand", self.0.name));
        let axis = || self.0.int("axis");
        match self.0.name.as_str() {
            "relu" => one(nn::relu(a)),
            "relu6" => one(nn::relu6(a)),
            "selu" => one(nn::selu(a)),
            "softplus" => one(nn::softplus(a)),
            "log_sigmoid" => one(nn::log_sigmoid(a)),
            "silu" => one(nn::silu(a)),
            "mish" => one(nn::mish(a)),
            "gelu" => one(nn::gelu(a)),
            "gelu_exact" => one(nn::gelu_exact(a)),
            "hard_sigmoid" => one(nn::hard_sigmoid(a)),
            "hard_swish" => one(nn::hard_swish(a)),
            "softsign" => one(nn::softsign(a)),
            "leaky_relu" => one(nn::leaky_relu(a, self.0.number("slope"))),
            "elu" => one(nn::elu(a, self.0.number("alpha"))),
            "celu" => one(nn::celu(a, self.0.number("alpha"))),
            "hard_tanh" => one(nn::hard_tanh(a, self.0.number("low"), self.0.number("high"))),
            "prelu" => one(nn::prelu(a, b())),
            "glu" => one(nn::glu(a, axis())),
            "softmax" => one(nn::softmax(a, axis())),
            "log_softmax" => one(nn::log_softmax(a, axis())),
            "logsumexp" => one(nn::logsumexp(a, &self.0.ints("axes"))),
            "cumlogsumexp" => one(a.cumlogsumexp(axis())),
            "cumsum" => one(a.cumsum(axis())),
            "cumprod" => one(a.cumprod(axis())),
            "cummax" => one(a.cummax(axis())),
            "cummin" => one(a.cummin(axis())),
            "argmin" => one(a.argmin(axis())?.convert(fuseline::DType::I64)),
            "argmax" => one(a.argmax(axis())?.convert(fuseline::DType::I64)),
            "var" => one(a.var(&self.0.ints("axes"), self.0.int("ddof") as usize)),
            "std" => one(a.std(&self.0.ints("axes"), self.0.int("ddof") as usize)),
            "layer_norm" => one(nn::layer_norm(a, b(), &x[2], self.0.number("epsilon"))),
            "rms_norm" => one(nn::rms_norm(a, b(), self.0.number("epsilon"))),
            "group_norm" => {
                let groups = self.0.int("groups") as usize;
                one(nn::group_norm(a, groups, axis(), b(), &x[2], self.0.number("epsilon")))
            }
            "batch_norm" => {
                let statistics = RunningStatistics { mean: b().clone(), variance: x[2].clone() };
                one(nn::batch_norm(a, &statistics, &x[3], &x[4], axis(), self.0.number("epsilon")))
            }
            "batch_norm_train" => {
                let before = RunningStatistics { mean: b().clone(), variance: x[2].clone() };
                let (momentum, epsilon) = (self.0.number("momentum"), self.0.number("epsilon"));
                let (y, after) = nn::batch_norm_train(a, &before, &x[3], &x[4], axis(), momentum, epsilon)?;
                Ok(vec![y, after.mean, after.variance])
            }
            "mse" => one(nn::mse(a, b(), self.reduction())),
            "mae" => one(nn::mae(a, b(), self.reduction())),
            "huber" => one(nn::huber(a, b(), self.0.number("delta"), self.reduction())),
            "smooth_l1" => one(nn::smooth_l1(a, b(), self.0.number("beta"), self.reduction())),
            "kl_div" => one(nn::kl_div(a, b(), self.reduction())),
            "bce_with_logits" => one(nn::bce_with_logits(a, b(), x.get(2), self.reduction())),
            "hinge" => one(nn::hinge(a, b(), self.reduction())),
            "cosine_similarity" => one(nn::cosine_similarity(a, b(), axis(), self.0.number("epsilon"))),
            "cross_entropy" | "nll" => {
                let settings = CrossEntropy {
                    label_smoothing: self.0.settings["label_smoothing"].as_f64().unwrap_or(0.0),
                    ignored: self.0.settings["ignored"].as_i64(),
                    weights: x.get(2),
                    reduction: self.reduction(),
                };
                match self.0.name.as_str() {
                    "nll" => one(nn::nll(a, b(), &settings)),
                    _ => one(nn::cross_entropy_with(a, b(), &settings)),
                }
            }
            "max_pool" => self.in_both_layouts(a, |x, layout| nn::max_pool(x, &self.pool(layout))),
            "avg_pool" => self.in_both_layouts(a, |x, layout| nn::avg_pool(x, &self.pool(layout))),
            "lp_pool" => {
                self.in_both_layouts(a, |x, layout| nn::lp_pool(x, self.0.number("p"), &self.pool(layout)))
            }
            "adaptive_avg_pool" => {
                self.in_both_layouts(a, |x, layout| nn::adaptive_avg_pool(x, &self.0.sizes("sizes"), layout))
            }
            "adaptive_max_pool" => {
                self.in_both_layouts(a, |x, layout| nn::adaptive_max_pool(x, &self.0.sizes("sizes"), layout))
            }
            "resize" => {
                let method = match self.0.settings["method"].as_str().unwrap() {
                    "nearest" => Method::Nearest,
                    "nearest-exact" => Method::NearestExact,
                    "linear" | "bilinear" | "trilinear" => Method::Linear,
                    "bicubic" => Method::Cubic,
                    other => panic!("a method {other}"),
                };
                let align_corners = self.0.flag("align_corners").unwrap();
                self.in_both_layouts(a, |x, layout| {
                    nn::resize(x, &self.0.sizes("sizes"), Resize { method, align_corners, layout })
                })
            }
            other => panic!("no function is called {other}"),
        }
    }

    /// Computes with the features first, in which results are compared, and with them last. Both
    /// must agree.
    fn in_both_layouts(
        &self,
        x: &Tensor,
        f: impl Fn(&Tensor, Layout) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let rank = x.rank() as i64;
        let to_last: Vec<i64> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let to_first: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let last = f(&x.transpose(&to_last)?, Layout::ChannelsLast)?.transpose(&to_first)?;
        Ok(vec![f(x, Layout::ChannelsFirst)?, last])
    }
}

/// The tolerance, in f64, for XLA's functions and another order of sums.
const TOLERANCE: f64 = 2e-13;

fn check(engine: &Engine, mode: Mode) -> Result<()> {
    let cases = cases(include_str!("../data/nn.json"));
    assert!(cases.len() > 400, "there are {} cases", cases.len());
    // All are recorded before the first read, so that the plugin has few modules to compile. It
    // gets a part of the cases: different settings of a function have different shapes, and without
    // fusion every op is a module.
    let most = match mode {
        _ if engine.pjrt_device().is_none() => usize::MAX,
        Mode::Fused => 4,
        _ => 1,
    };
    let mut recorded = Vec::new();
    let mut seen = HashMap::<&str, usize>::new();
    for case in &cases {
        let count = seen.entry(&case.name).or_default();
        *count += 1;
        if *count > most {
            continue;
        }
        let inputs: Vec<Tensor> =
            case.inputs.iter().map(|input| engine.from_literal(input)).collect::<Result<_>>()?;
        recorded.push((case, Call(case).call(&inputs)?));
    }
    let mut wrong = Vec::new();
    for (case, results) in recorded {
        for (i, result) in results.iter().enumerate() {
            // Spatial functions have two results to compare with one: one per layout.
            let expected = if case.outputs.len() == 1 { &case.outputs[0] } else { &case.outputs[i] };
            wrong.extend(case.difference(&result.to_literal()?, expected, TOLERANCE));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    Ok(())
}

#[test]
fn everything_is_as_in_pytorch() {
    in_each_mode(check);
}

#[test]
fn attention_is_as_in_jax() {
    in_each_mode(|engine, mode| {
        let mut cases = cases(include_str!("../data/attention.json"));
        assert!(cases.len() > 10);
        if engine.pjrt_device().is_some() && mode != Mode::Fused {
            // Some of each kind: grouped heads, with a mask, causal.
            cases = cases.into_iter().skip(2).step_by(3).collect();
        }
        let mut recorded = Vec::new();
        for case in &cases {
            let x: Vec<Tensor> =
                case.inputs.iter().map(|input| engine.from_literal(input)).collect::<Result<_>>()?;
            let settings = Attention {
                mask: x.get(3),
                causal: case.flag("causal").unwrap().then_some(0),
                scale: case.settings["scale"].as_f64(),
                dropout: None,
            };
            recorded.push(nn::attention(&x[0], &x[1], &x[2], settings)?.0);
        }
        for (case, mixed) in cases.iter().zip(recorded) {
            assert_eq!(case.difference(&mixed.to_literal()?, &case.outputs[0], TOLERANCE), None);
        }
        Ok(())
    });
}
