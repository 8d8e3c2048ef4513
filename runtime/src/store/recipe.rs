//! Decodes requests: everything that a compile depends on, except for the environment.
//!
//! Input: the bytes of a request, from a manifest (which is not trusted) or an entry. Output: a
//! region and its compile options, or what is wrong with the bytes.
//!
//! Invariant:
//! - STORE-4: a decoded request encodes to the same bytes. So each request has one accepted
//!   spelling, and aliases are those that the lowering would choose.

use std::sync::Arc;

use fuseline_cache::OutputSet;
use fuseline_fusion::canon::{self, CanonRegion};
use fuseline_fusion::encode::{DecodeError, Reader};
use fuseline_fusion::{DType, Literal, Scalar, TensorType};

use super::{REQUEST, encode};
use crate::device::{CompileSpec, SpecializedScalars, Tier};

/// A region and how to compile it.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The region.
    pub canon: Arc<CanonRegion>,
    /// The requested executable.
    pub spec: CompileSpec,
}

impl Recipe {
    /// Reads an encoded recipe.
    ///
    /// # Errors
    /// When the bytes are not a recipe.
    pub fn decode(bytes: &[u8]) -> Result<Recipe, String> {
        let words = |error: DecodeError| format!("the request is no request of this build: {error}");
        let mut input = Reader::new(bytes);
        match input.byte().map_err(words)? {
            REQUEST => {}
            other => return Err(format!("the request has version {other}, this build reads {REQUEST}")),
        }
        let region = input.bytes().map_err(words)?;
        let region = canon::decode(region)
            .map_err(|error| format!("the region of the request is none of this build: {error}"))?;
        let recipe = rest(&mut input, Arc::new(region)).map_err(words)?;
        input.finish().map_err(words)?;
        if recipe.encode() != bytes {
            return Err("the request is not spelled as this build spells it".to_owned());
        }
        Ok(recipe)
    }

    /// The bytes of the request.
    pub(crate) fn encode(&self) -> Vec<u8> {
        encode(&self.canon, &self.spec)
    }

    /// The same with all optimizations.
    pub fn optimized(&self) -> Recipe {
        Recipe { spec: self.spec.in_tier(Tier::Optimized), ..self.clone() }
    }
}

/// Decodes what follows the region.
fn rest(input: &mut Reader<'_>, canon: Arc<CanonRegion>) -> Result<Recipe, DecodeError> {
    let results: usize = canon.graph().nodes().iter().map(|node| node.signature().results().len()).sum();
    let mut outputs = OutputSet::new();
    let mut least = 0;
    for _ in 0..input.count()? {
        let output = input.uint()?;
        if output < least || output >= results as u64 {
            return Err(input.error("results of the region, ascending"));
        }
        least = output + 1;
        outputs.insert(output as u32);
    }
    let mut donated = Vec::new();
    for _ in 0..input.count()? {
        donated.push(param(input, &canon, false)?);
        input.uint()?;
    }
    let mut constants = SpecializedScalars::new();
    for _ in 0..input.count()? {
        let param = param(input, &canon, true)?;
        let scalar = scalar(input)?;
        if canon.graph().params()[param as usize].dtype() != scalar.dtype() {
            return Err(input.error("a constant of the parameter's type"));
        }
        constants.push((param, scalar));
    }
    let tier = match input.byte()? {
        0 => Tier::Optimized,
        1 => Tier::Baseline,
        _ => return Err(input.error("a flag")),
    };
    Ok(Recipe { canon, spec: CompileSpec { outputs, donated, constants, tier } })
}

/// Decodes a parameter, and checks whether it is lifted.
fn param(input: &mut Reader<'_>, canon: &CanonRegion, lifted: bool) -> Result<u32, DecodeError> {
    let param = input.uint()?;
    let place = usize::try_from(param).ok().and_then(|param| canon.lifted().get(param));
    match place {
        Some(&is) if is == lifted => Ok(param as u32),
        _ => Err(input.error("a parameter of the region, lifted or not as it has to be")),
    }
}

fn scalar(input: &mut Reader<'_>) -> Result<Scalar, DecodeError> {
    let name = input.bytes()?;
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.to_string().as_bytes() == name);
    let dtype = dtype.filter(|dtype| !dtype.is_complex());
    let dtype = dtype.ok_or_else(|| input.error("the type of a constant"))?;
    let bits = input.uint()?.to_le_bytes();
    let literal = Literal::from_bytes(TensorType::scalar(dtype), bits[..dtype.size().min(8)].to_vec());
    literal.ok().and_then(|literal| Scalar::of(&literal)).ok_or_else(|| input.error("a constant"))
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use fuseline_fusion::{Attrs, Graph, OpCode};
    use proptest::prelude::*;

    use super::*;

    /// A chain of sums and products of two vectors and a lifted number.
    fn region(ops: &[bool], size: u64) -> Arc<CanonRegion> {
        let mut graph = Graph::new();
        let vector = TensorType::of(DType::F32, &[size]).unwrap();
        let (x, y) = (graph.param(vector.clone()), graph.param(vector));
        let _number = graph.param(TensorType::scalar(DType::F32));
        let mut last = x;
        for &sum in ops {
            let op = if sum { OpCode::Add } else { OpCode::Multiply };
            last = graph.push(op, Attrs::none(), &[], &[last, y]).unwrap()[0];
        }
        Arc::new(CanonRegion::new(graph, vec![false, false, true].into_boxed_slice()))
    }

    fn recipes() -> impl Strategy<Value = Recipe> {
        let parts = (
            proptest::collection::vec(any::<bool>(), 1..6),
            1u64..9,
            proptest::collection::vec(any::<bool>(), 6),
            any::<(bool, bool, bool)>(),
            proptest::option::of(any::<f32>()),
        );
        parts.prop_map(|(ops, size, live, (x, y, quick), fixed)| {
            let canon = region(&ops, size);
            let outputs = (0..ops.len() as u32).filter(|&at| live[at as usize]).collect();
            let donated: Vec<u32> =
                [(0, x), (1, y)].into_iter().filter(|row| row.1).map(|row| row.0).collect();
            let constants = fixed.map(|value| (2, Scalar::new(value))).into_iter().collect();
            let tier = if quick { Tier::Baseline } else { Tier::Optimized };
            Recipe { canon, spec: CompileSpec { outputs, donated, constants, tier } }
        })
    }

    proptest! {
        /// STORE-4.
        #[test]
        fn what_is_read_back_is_what_was_written(recipe in recipes()) {
            let bytes = recipe.encode();
            let read = Recipe::decode(&bytes).unwrap();
            prop_assert_eq!(read.encode(), bytes);
            prop_assert_eq!(&read.canon, &recipe.canon);
            prop_assert_eq!(read.spec.outputs, recipe.spec.outputs);
            prop_assert_eq!(read.spec.constants, recipe.spec.constants);
            prop_assert_eq!(read.spec.tier, recipe.spec.tier);
        }

        /// Any bytes are rejected, or encoded again as they were.
        #[test]
        fn changed_bytes_have_one_reading(recipe in recipes(), at: prop::sample::Index, bit in 0u8..8, cut: bool) {
            let mut bytes = recipe.encode();
            let at = at.index(bytes.len());
            if cut {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << bit;
            }
            if let Ok(read) = Recipe::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }

    #[test]
    fn what_is_no_request_says_why() {
        let recipe = Recipe {
            canon: region(&[true, false], 3),
            spec: CompileSpec { outputs: [1].into_iter().collect(), ..CompileSpec::default() },
        };
        let bytes = recipe.encode();
        let refused = |bytes: &[u8]| Recipe::decode(bytes).map(drop).unwrap_err();
        assert!(refused(&[]).contains("no request"));
        let mut other = bytes.clone();
        other[0] = REQUEST + 1;
        assert!(refused(&other).contains("version"), "{}", refused(&other));
        assert!(refused(&[&bytes[..], &[0]].concat()).contains("the end"));
        // After the region: the number of results, its only result, no aliases, no constants, the
        // flag.
        let mut other = bytes;
        let at = other.len() - 5;
        assert_eq!(other[at..], [1, 1, 0, 0, 0]);
        other[at + 1] = 7;
        assert!(refused(&other).contains("results of the region"), "{}", refused(&other));
    }
}
