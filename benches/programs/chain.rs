//! A chain of elementwise ops on one vector: multiplication, addition and tanh, repeated.

use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

struct Chain {
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    ops: usize,
    last: Option<Tensor>,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let elements = params.int("elements");
    let vector = |seed, low, high| engine.tensor(&data::uniform(seed, elements, low, high), &[elements]);
    Ok(Box::new(Chain {
        x: vector(1, -1.0, 1.0)?,
        scale: vector(2, 0.5, 1.5)?,
        shift: vector(3, -0.5, 0.5)?,
        ops: params.int("ops"),
        last: None,
    }))
}

impl Program for Chain {
    fn step(&mut self) -> Result<()> {
        let mut y = self.x.clone();
        for op in 0..self.ops {
            y = match op % 3 {
                0 => y.mul(&self.scale)?,
                1 => y.add(&self.shift)?,
                _ => y.tanh()?,
            };
        }
        y.wait()?;
        self.last = Some(y);
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        read(self.last.iter().map(|last| ("y", last)))
    }
}
