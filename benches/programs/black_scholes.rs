//! Prices of many European options by the Black-Scholes formula, a call and a put each. Not every
//! library has an error function, so all use the same polynomial for it (Abramowitz, Stegun 1964,
//! 7.1.26).

use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

const RATE: f64 = 0.02;
const VOLATILITY: f64 = 0.3;
/// The number of groups whose sums are compared.
const GROUPS: usize = 32768;

struct Options {
    price: Tensor,
    strike: Tensor,
    years: Tensor,
    last: Option<(Tensor, Tensor)>,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let options = params.int("options");
    let vector = |seed, low, high| engine.tensor(&data::uniform(seed, options, low, high), &[options]);
    Ok(Box::new(Options {
        price: vector(1, 10.0, 50.0)?,
        strike: vector(2, 10.0, 50.0)?,
        years: vector(3, 0.5, 2.0)?,
        last: None,
    }))
}

fn erf(x: &Tensor) -> Result<Tensor> {
    let size = x.abs()?;
    let t = (1.0 / (1.0 + (0.3275911 * &size)?)?)?;
    let mut sum = (1.061405429 * &t)?;
    for factor in [-1.453152027, 1.421413741, -0.284496736, 0.254829592] {
        sum = ((sum + factor)? * &t)?;
    }
    x.sign()? * (1.0 - (sum * (-(&size * &size)?)?.exp()?)?)?
}

/// The cumulative distribution function of the normal distribution.
fn normal(x: &Tensor) -> Result<Tensor> {
    0.5 * (1.0 + erf(&(x * std::f64::consts::FRAC_1_SQRT_2)?)?)?
}

impl Program for Options {
    fn step(&mut self) -> Result<()> {
        let spread = (VOLATILITY * self.years.sqrt()?)?;
        let drift = ((RATE + VOLATILITY * VOLATILITY / 2.0) * &self.years)?;
        let d1 = (((&self.price / &self.strike)?.log()? + drift)? / &spread)?;
        let d2 = (&d1 - spread)?;
        let later = (&self.strike * (-RATE * &self.years)?.exp()?)?;
        let call = ((&self.price * normal(&d1)?)? - (&later * normal(&d2)?)?)?;
        let put = ((later * normal(&(-d2)?)?)? - (&self.price * normal(&(-d1)?)?)?)?;
        call.wait()?;
        put.wait()?;
        self.last = Some((call, put));
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let Some((call, put)) = &self.last else { return Ok(Vec::new()) };
        let sums = |x: &Tensor| x.reshape(&[GROUPS, x.dims()[0] / GROUPS])?.sum(&[1]);
        read([("call", &sums(call)?), ("put", &sums(put)?)])
    }
}
