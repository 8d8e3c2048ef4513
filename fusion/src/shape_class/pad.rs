//! Writes the padded region.

use std::sync::Arc;

use super::writer::Writer;
use super::{ShapeClass, ShapeClassError, rules};
use crate::canon::CanonRegion;
use crate::ir::{Graph, Ref};
use crate::literal::Scalar;

/// A region that computes another one, and all regions of its class whose sizes have the same
/// buckets.
#[derive(Debug)]
pub struct Padded {
    region: Arc<CanonRegion>,
    results: Vec<u32>,
    scalars: Vec<Scalar>,
    origins: Vec<usize>,
    sizes: Vec<(u64, u64)>,
    is_masked: bool,
}

impl Padded {
    /// The region to run. Its parameters are those of the original region at larger sizes, then
    /// [`Padded::scalars`].
    #[must_use]
    pub fn region(&self) -> &Arc<CanonRegion> {
        &self.region
    }

    /// For each result of the original region, the number of the corresponding result.
    #[must_use]
    pub fn results(&self) -> &[u32] {
        &self.results
    }

    /// The values of the additional parameters: true sizes, and numbers that vary with them.
    #[must_use]
    pub fn scalars(&self) -> &[Scalar] {
        &self.scalars
    }

    /// For each node, the node of the original region that it belongs to.
    #[must_use]
    pub fn origins(&self) -> &[usize] {
        &self.origins
    }

    /// The varying sizes, each with its padded size.
    #[must_use]
    pub fn sizes(&self) -> &[(u64, u64)] {
        &self.sizes
    }

    /// Whether floats are combined over a varying size, and so possibly in another order than
    /// without padding.
    #[must_use]
    pub fn is_masked(&self) -> bool {
        self.is_masked
    }
}

/// Pads a region, given the true and the padded size of each symbol.
pub(super) fn padded(
    class: &ShapeClass,
    region: &CanonRegion,
    sizes: Vec<u64>,
    padded: Vec<u64>,
) -> Result<Padded, ShapeClassError> {
    let old = region.graph();
    let mut writer = Writer {
        class,
        old,
        graph: Graph::with_capacity_of(old),
        padded,
        size_params: vec![None; sizes.len()],
        sizes,
        values: Vec::with_capacity(old.params().len() + old.result_count()),
        scalars: Vec::new(),
        is_masked: false,
    };
    for (ty, dims) in old.params().iter().zip(&class.dims) {
        let ty = writer.physical(ty, dims).map_err(|_| ShapeClassError::Unlike)?;
        let param = writer.graph.param(ty);
        writer.values.push(param);
    }
    let mut origins = Vec::with_capacity(old.nodes().len());
    for (index, node) in old.nodes().iter().enumerate() {
        let refused = ShapeClassError::NoRule { node: index, op: node.signature().op() };
        let results = rules::write(&mut writer, index, node).map_err(|_| refused)?;
        // A rule that produces other sizes does not count as a rule.
        for (old, &new) in node.results().zip(&results) {
            let wanted = writer.physical_of(old).map_err(|_| refused)?;
            if writer.graph.type_of(new) != Some(&wanted) {
                return Err(refused);
            }
        }
        writer.values.extend(results);
        origins.resize(writer.graph.nodes().len(), index);
    }
    let Writer { graph, padded, sizes, values, scalars, is_masked, .. } = writer;
    let result = |value: &Ref| match value {
        Ref::Result(index) => *index,
        Ref::Param(_) => unreachable!("bug: a padding rule returns a parameter"),
    };
    let results = values[old.params().len()..].iter().map(result).collect();
    let lifted = region.lifted().iter().copied().chain(scalars.iter().map(|_| true)).collect();
    let region = Arc::new(CanonRegion::new(graph, lifted));
    let sizes = sizes.into_iter().zip(padded).collect();
    Ok(Padded { region, results, scalars, origins, sizes, is_masked })
}
