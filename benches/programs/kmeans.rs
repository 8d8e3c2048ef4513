//! Lloyd's algorithm: each point goes to the nearest centre, and each centre to the mean of its
//! points. A step is one iteration, and reads the sum of squared distances. The clusters are far
//! enough apart that rounding does not affect the assignment.

use fuseline::{DType, Engine, Result, Tensor};

use super::{Params, Program, data, read};

struct Groups {
    points: Tensor,
    centres: Tensor,
    inertia: f32,
}

pub(super) fn make(engine: &Engine, params: &Params) -> Result<Box<dyn Program>> {
    let (points, dims, groups) = (params.int("points"), params.int("dims"), params.int("groups"));
    let middles = data::uniform(1, groups * dims, -1.0, 1.0);
    let around = |seed, count: usize, most: f64| {
        let offsets = data::uniform(seed, count * dims, -most, most);
        let near = middles.iter().cycle().zip(offsets).map(|(middle, offset)| middle + offset);
        engine.tensor(&near.collect::<Vec<f32>>(), &[count, dims])
    };
    Ok(Box::new(Groups {
        points: around(2, points, 0.2)?,
        centres: around(3, groups, 0.4)?,
        inertia: f32::NAN,
    }))
}

impl Program for Groups {
    fn step(&mut self) -> Result<()> {
        let (points, centres) = (&self.points, &self.centres);
        let groups = centres.dims()[0];
        let products = points.matmul(&centres.swap_axes(0, 1)?)?;
        let sizes = (points * points)?.sum(&[1])?.unsqueeze(1)?;
        let distances = ((sizes - (products * 2.0)?)? + (centres * centres)?.sum(&[1])?)?;
        let nearest = distances.argmin(1)?.one_hot(groups, DType::F32)?;
        let counts = nearest.sum(&[0])?.unsqueeze(1)?;
        let centres = (nearest.swap_axes(0, 1)?.matmul(points)? / counts)?;
        self.inertia = distances.min(&[1])?.sum(&[0])?.item()?;
        self.centres = centres;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut outputs = read([("centres", &self.centres)])?;
        outputs.push(("inertia", vec![self.inertia]));
        Ok(outputs)
    }
}
