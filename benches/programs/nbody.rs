//! Bodies that attract each other, all pairs at once by broadcasting, integrated by the leapfrog
//! method. A step of the benchmark is several time steps, and reads the energy: the kinetic energy
//! and that of all pairs, including each body with itself, which only adds a constant. The
//! attraction is softened enough that no close encounter ejects a body.

use fuseline::{Engine, Result, Tensor};

use super::{Params, Program, data, read};

const SOFTENING: f64 = 0.5;
const STEP: f64 = 0.01;

struct Bodies {
    places: Tensor,
    speeds: Tensor,
    masses: Tensor,
    forces: Tensor,
    moves: usize,
    energy: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let bodies = params.int("bodies");
    let places = data::uniform(1, bodies * 3, -1.0, 1.0);
    let speeds = without_drift(data::uniform(2, bodies * 3, -0.5, 0.5));
    let places = engine.tensor(&places, &[bodies, 3])?;
    let masses = engine.full(1.0 / bodies as f32, &[bodies, 1])?;
    Ok(Box::new(Bodies {
        forces: attraction(&places, &masses)?,
        places,
        speeds: engine.tensor(&speeds, &[bodies, 3])?,
        masses,
        moves: params.int("moves"),
        energy: f32::NAN,
    }))
}

/// Velocities minus their mean, so that the centre of mass stays in place.
fn without_drift(mut speeds: Vec<f32>) -> Vec<f32> {
    for axis in 0..3 {
        let along = || speeds.iter().skip(axis).step_by(3);
        let mean = along().map(|&speed| f64::from(speed)).sum::<f64>() / along().count() as f64;
        speeds.iter_mut().skip(axis).step_by(3).for_each(|speed| *speed = (f64::from(*speed) - mean) as f32);
    }
    speeds
}

/// The distance from each body, a row, to each other one, a column, along each axis; and the square
/// of the softened distance.
fn distances(places: &Tensor) -> Result<(Vec<Tensor>, Tensor)> {
    let along = |axis| {
        let places = places.narrow(1, axis, axis + 1)?;
        places.transpose(&[1, 0])? - places
    };
    let (x, y, z) = (along(0)?, along(1)?, along(2)?);
    let square = ((((&x * &x)? + (&y * &y)?)? + (&z * &z)?)? + SOFTENING * SOFTENING)?;
    Ok((vec![x, y, z], square))
}

fn attraction(places: &Tensor, masses: &Tensor) -> Result<Tensor> {
    let (along, square) = distances(places)?;
    let weight = (1.0 / (&square * square.sqrt()?)?)?;
    let forces = along.iter().map(|distance| (distance * &weight)?.matmul(masses));
    let forces: Vec<Tensor> = forces.collect::<Result<_>>()?;
    Tensor::concatenate(&forces.iter().collect::<Vec<_>>(), 1)
}

impl Program for Bodies {
    fn step(&mut self) -> Result<()> {
        for _ in 0..self.moves {
            self.speeds = (&self.speeds + (&self.forces * (STEP / 2.0))?)?;
            self.places = (&self.places + (&self.speeds * STEP)?)?;
            self.forces = attraction(&self.places, &self.masses)?;
            self.speeds = (&self.speeds + (&self.forces * (STEP / 2.0))?)?;
        }
        let motion = ((&self.speeds * &self.speeds)? * &self.masses)?.sum(&[0, 1])?;
        let (_, square) = distances(&self.places)?;
        let pairs = ((&self.masses * self.masses.transpose(&[1, 0])?)? / square.sqrt()?)?.sum(&[0, 1])?;
        self.energy = ((motion - pairs)? * 0.5)?.item()?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("places", &self.places), ("speeds", &self.speeds)])?;
        outputs.push(("energy", vec![self.energy]));
        Ok(outputs)
    }
}
