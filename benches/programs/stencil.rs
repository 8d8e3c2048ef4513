//! Heat that spreads on a square plate with fixed edges: Jacobi's method, in which a point becomes
//! the mean of itself and its four neighbours. All temperatures are well above 0, and a mean is
//! never below the smallest of them.

use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

/// The largest number of rows to compare: means of square parts of the plate.
const PARTS: usize = 64;

struct Plate {
    heat: Tensor,
    /// The start of the inner points, along both dimensions.
    inside: Tensor,
    sweeps: usize,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let side = params.int("side");
    Ok(Box::new(Plate {
        heat: engine.tensor(&data::uniform(1, side * side, 0.5, 1.5), &[side, side])?,
        inside: engine.scalar(1i32),
        sweeps: params.int("sweeps"),
    }))
}

impl Program for Plate {
    fn step(&mut self) -> Result<()> {
        let side = self.heat.dims()[0] as i64;
        for _ in 0..self.sweeps {
            let heat = &self.heat;
            let at = |row: i64, column: i64| {
                heat.slice(&[row, column], &[row + side - 2, column + side - 2], &[1, 1])
            };
            let sum = ((((at(1, 1)? + at(1, 0)?)? + at(1, 2)?)? + at(2, 1)?)? + at(0, 1)?)?;
            self.heat = heat.dynamic_update_slice(&(0.2 * sum)?, &[&self.inside, &self.inside])?;
        }
        self.heat.wait()
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let size = self.heat.dims()[0] / PARTS;
        let means = self.heat.reshape(&[PARTS, size, PARTS, size])?.mean(&[1, 3])?;
        read([("means", &means)])
    }
}
