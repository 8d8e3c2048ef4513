//! The calls that represent a pair: made by the row's generator, with special values as data.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use fuseline::fusion::attr::AttrKind;
use fuseline::fusion::op::{Fusibility, OPS, Rounding, Signature, rounding_class, rounds};
use fuseline::fusion::{AttrValue, Body, DTypeSet, OpDef};
use fuseline::{Attrs, DType, Literal, OpCode, TensorType};
use fuseline_testgen::{Aim, Domain, SampleOperand, Sampler, Seeded, fill};

use crate::special::{of_bits, specials};

/// The largest number of elements of an elementwise op's operand.
pub const MOST: usize = 1 << 16;

/// The largest number of special values of one type among operands of other ops.
const LIST: usize = 256;

/// The number of calls of an op that is not elementwise: minimum, maximum, and maximum if a call of
/// floats has one special value.
const CALLS: (usize, usize, usize) = (4, 6, 12);

/// The largest number of calls of an elementwise op with attributes.
const VARIANTS: usize = 12;

/// The largest number of attempts to find them.
const TRIES: u64 = 600;

/// An op on an element type: that of its first operand, or of its result if it has no operand.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The row of the op.
    pub def: &'static OpDef,
    /// The element type.
    pub dtype: DType,
    /// Another type of the call: one that an attribute names, or that of the operands among which
    /// the first one, which has a fixed type, selects.
    pub other: Option<DType>,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.def.name, self.dtype)?;
        self.other.map_or(Ok(()), |other| write!(f, " and {other}"))
    }
}

/// A call with its operands.
#[derive(Clone, Debug)]
pub struct Call {
    /// The op with its attributes, bodies and types.
    pub signature: Arc<Signature>,
    /// The data of the operands.
    pub operands: Vec<Arc<Literal>>,
}

impl fmt::Display for Call {
    /// Signature and attributes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.signature)?;
        let attrs = self.signature.attrs();
        if attrs.values().is_empty() { Ok(()) } else { write!(f, " {attrs:?}") }
    }
}

/// The index of an attribute that names an element type.
#[must_use]
pub fn dtype_attr(def: &OpDef) -> Option<usize> {
    let place = def.attrs.iter().position(|attr| attr.kind == AttrKind::DType);
    place.filter(|_| !def.takes(0))
}

/// Whether the first operand, which has a fixed type, selects among others.
fn is_selector(def: &OpDef) -> bool {
    def.dtypes.iter().count() == 1 && (def.takes(2) || def.takes(3))
}

/// Every pair of the op table, in its order.
#[must_use]
pub fn pairs() -> Vec<Pair> {
    let mut all = Vec::new();
    for def in &OPS {
        for dtype in def.dtypes.and(DTypeSet::ANY).iter() {
            if dtype_attr(def).is_some() || is_selector(def) {
                all.extend(DTypeSet::ANY.iter().map(|other| Pair { def, dtype, other: Some(other) }));
            } else {
                all.push(Pair { def, dtype, other: None });
            }
        }
    }
    all
}

/// Whether an op does nothing but run its bodies.
fn runs_bodies(op: OpCode) -> bool {
    matches!(op, OpCode::While | OpCode::If | OpCode::Case | OpCode::Map | OpCode::Composite)
}

/// Whether a body has an op on floats for which `is` holds.
fn has(body: &Body, is: fn(&Signature) -> bool) -> bool {
    let mut signatures = body.graph().nodes().iter().map(|node| node.signature());
    signatures.any(|signature| match signature.bodies() {
        [] => (has_floats(signature.operands()) || has_floats(signature.results())) && is(signature),
        bodies => bodies.iter().any(|body| has(body, is)),
    })
}

fn has_floats(types: &[TensorType]) -> bool {
    types.iter().any(|ty| ty.dtype().part().is_float())
}

/// A call from the row's generator, with what its operands must contain.
struct Sampled {
    attrs: Attrs,
    bodies: Vec<Arc<Body>>,
    operands: Vec<SampleOperand>,
}

impl Sampled {
    fn types(&self) -> Vec<TensorType> {
        self.operands.iter().map(|operand| operand.ty(&[]).clone()).collect()
    }
}

/// Generates the calls of a pair.
struct Maker {
    pair: Pair,
    /// The largest number of elements of an elementwise op's operand.
    most: usize,
    seed: u64,
    /// How many special values of each type were used.
    used: HashMap<DType, usize>,
}

/// The calls that represent a pair, elementwise ones with at most `most` elements; none if the op's
/// rule accepts no call. They are a function of the pair and of `most`.
#[must_use]
pub fn calls(pair: Pair, most: usize) -> Vec<Call> {
    let mut maker = Maker { pair, most, seed: 0, used: HashMap::new() };
    if pair.def.fusibility == Fusibility::Elementwise { maker.elementwise() } else { maker.any() }
}

impl Maker {
    /// For elementwise ops any call. For others portable calls only, since the plugin's result may
    /// depend on more than the data, and bodies that combine in any order.
    fn sample(&mut self) -> Option<Sampled> {
        let Pair { def, dtype, other } = self.pair;
        let elementwise = def.fusibility == Fusibility::Elementwise;
        let aim = if elementwise { Aim::Everything } else { Aim::Portable };
        // Mostly the types of the pair alone, now and then with those that indices, sizes and
        // bodies need.
        let own = DTypeSet::of(&[dtype, other.unwrap_or(dtype)]);
        let dtypes = if self.seed % 4 < 2 { own } else { own.or(DTypeSet::ANY.and(DTypeSet::INT_BOOL)) };
        self.seed += 1;
        let mut entropy = Seeded::new(self.seed);
        let sample = Sampler::new(def, &mut entropy, &[], dtypes, aim).sample()?;
        let mut sampled = Sampled { attrs: sample.attrs, bodies: sample.bodies, operands: sample.operands };
        if let (Some(place), Some(other)) = (dtype_attr(def), other) {
            let mut values = sampled.attrs.values().to_vec();
            // The generator chooses the accumulation type of a product.
            let free = !matches!(def.fusibility, Fusibility::Contraction | Fusibility::Indexing);
            if free {
                values[place] = AttrValue::DType(other);
            } else if values[place] != AttrValue::DType(other) {
                return None;
            }
            sampled.attrs = values.into_iter().collect();
        }
        let types = sampled.types();
        let signature = Signature::infer(def.code, sampled.attrs.clone(), &sampled.bodies, &types).ok()?;
        let first = types.first().or(signature.results().first())?;
        let chosen = !is_selector(def) || types[1..].iter().any(|ty| Some(ty.dtype()) == other);
        let mut all = types.iter().chain(signature.results());
        (first.dtype() == dtype && chosen && all.all(|ty| DTypeSet::ANY.contains(ty.dtype())))
            .then_some(sampled)
    }

    fn elementwise(&mut self) -> Vec<Call> {
        let wanted = match self.pair {
            Pair { def, other: None, .. } if !def.attrs.is_empty() => VARIANTS,
            _ => 1,
        };
        let mut calls: Vec<Call> = Vec::new();
        while self.seed < TRIES && calls.len() < wanted {
            let Some(call) = self.crossed() else { continue };
            if calls.iter().all(|other| other.signature.attrs() != call.signature.attrs()) {
                calls.push(call);
            }
        }
        calls
    }

    /// A call on vectors that contain the special values of their types in all combinations.
    fn crossed(&mut self) -> Option<Call> {
        let sampled = self.sample()?;
        let types = sampled.types();
        // Scalars beside tensors are another call of the same op.
        if !types.windows(2).all(|pair| pair[0].shape() == pair[1].shape()) {
            return None;
        }
        // tests/ops/exhaustive.rs runs all short floats through the ops of one operand.
        let apart = types.len() == 1 && self.pair.other.is_none() && types[0].dtype().is_float();
        let most = (self.most as f64).powf(1.0 / types.len() as f64) as usize - usize::from(apart);
        let lists: Vec<Vec<u128>> = types.iter().map(|ty| specials(ty.dtype(), most)).collect();
        let count: usize = lists.iter().map(Vec::len).product();
        let mut step = count;
        let mut operands = Vec::new();
        for (list, ty) in lists.iter().zip(&types) {
            step /= list.len();
            let ty = TensorType::of(ty.dtype(), &[count as u64]).expect("small");
            operands.push(of_bits(ty, (0..count).map(|index| list[index / step % list.len()])));
        }
        self.call(sampled, operands)
    }

    /// Calls until each special value was used.
    fn any(&mut self) -> Vec<Call> {
        let Pair { def, dtype, other } = self.pair;
        let shown = other.filter(|_| is_selector(def)).unwrap_or(dtype);
        let enough = specials(shown, LIST).len();
        let combines = def.rounding == Rounding::Rounded && !runs_bodies(def.code);
        // Values that are moved to another type also occur in the other pairs of the first type.
        let most = match def.fusibility {
            Fusibility::Movement if dtype_attr(def).is_some() => CALLS.0,
            _ if combines && shown.part().is_float() => CALLS.2,
            _ => CALLS.1,
        };
        let mut calls = Vec::new();
        while self.seed < TRIES {
            let used: usize = self.used.values().sum();
            if calls.len() >= most || (calls.len() >= CALLS.0 && used >= enough) {
                break;
            }
            calls.extend(self.special());
        }
        calls
    }

    /// Data that cycles through the special values, continuing after the previous data.
    fn cycled(&mut self, ty: &TensorType) -> Literal {
        let list = specials(ty.dtype(), LIST);
        let count = ty.elems().get();
        let used = self.used.entry(ty.dtype()).or_default();
        let start = *used;
        *used += count;
        of_bits(ty.clone(), (start..start + count).map(|index| list[index % list.len()]))
    }

    /// A call that moves, orders or combines special values. If floats are combined, there is one
    /// special value among ordinary ones, so that its fate does not depend on the order of
    /// combination.
    fn special(&mut self) -> Option<Call> {
        let mut sampled = self.sample()?;
        let def = self.pair.def;
        let types = sampled.types();
        let signature = Signature::infer(def.code, sampled.attrs.clone(), &sampled.bodies, &types).ok()?;
        let floats = has_floats(&types) || has_floats(signature.results());
        let jumps = |signature: &Signature| rounding_class(signature) == Rounding::Step;
        // An op that rounds is compared as an op, not as a body.
        if runs_bodies(def.code) && sampled.bodies.iter().any(|body| has(body, rounds)) {
            return None;
        }
        let mut values = sampled.attrs.values().to_vec();
        if let Some(AttrValue::Dense(data)) =
            values.iter_mut().find(|value| matches!(value, AttrValue::Dense(_)))
        {
            let ty =
                TensorType::of(data.dtype(), &[specials(data.dtype(), LIST).len() as u64]).expect("small");
            *data = Arc::new(self.cycled(&ty));
        }
        sampled.attrs = values.into_iter().collect();
        let combines = floats && !runs_bodies(def.code) && (rounds(&signature) || !sampled.bodies.is_empty());
        let mut entropy = Seeded::new(self.seed);
        let mut data = Vec::new();
        for operand in &sampled.operands {
            data.push(match operand {
                SampleOperand::Pool(_) => unreachable!("the pool is empty"),
                SampleOperand::Given(data) => Literal::clone(data),
                SampleOperand::Fresh(ty, Domain::Any) if !combines || !ty.dtype().part().is_float() => {
                    self.cycled(ty)
                }
                SampleOperand::Fresh(ty, domain) => fill(&mut entropy, ty, *domain, Aim::Portable),
            });
        }
        // Windows are visited in any order, so either of two equal elements may be selected.
        if def.code == OpCode::SelectAndScatter && has_ties(&data[0]) {
            return None;
        }
        if combines {
            let fresh = |place: &usize| {
                let data: &Literal = &data[*place];
                matches!(sampled.operands[*place], SampleOperand::Fresh(..))
                    && data.dtype().part().is_float()
                    && data.ty().elems().get() > 0
            };
            let places: Vec<usize> = (0..data.len()).filter(fresh).collect();
            if !places.is_empty() {
                let place = places[self.seed as usize / 4 % places.len()];
                let one = self.cycled(&TensorType::scalar(data[place].dtype()));
                // A comparison with NaN keeps the earlier element, and the order is not specified.
                if one.has_nan() && sampled.bodies.iter().any(|body| has(body, jumps)) {
                    return None;
                }
                data[place] = with_one(&data[place], self.seed as usize * 7, &one);
            }
        }
        self.call(sampled, data)
    }

    fn call(&self, sampled: Sampled, operands: Vec<Literal>) -> Option<Call> {
        let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
        let signature = Signature::infer(self.pair.def.code, sampled.attrs, &sampled.bodies, &types).ok()?;
        let operands = operands.into_iter().map(Arc::new).collect();
        Some(Call { signature: Arc::new(signature), operands })
    }
}

/// Calls with one number in all elements, which XLA folds with other code: an elementwise op on
/// some elements of its operands, as scalars and as vectors in turn; another op on the first
/// element of each operand of numbers that round.
#[must_use]
pub fn splats(call: &Call) -> Vec<Call> {
    /// The largest number of them for an elementwise op.
    const SPLATS: usize = 4;
    let signature = &call.signature;
    let def = signature.def();
    let again = |operands: Vec<Arc<Literal>>| {
        let types: Vec<TensorType> = operands.iter().map(|data| data.ty().clone()).collect();
        let signature =
            Signature::infer(def.code, Attrs::clone(signature.attrs()), signature.bodies(), &types).ok()?;
        Some(Call { signature: Arc::new(signature), operands })
    };
    if def.fusibility != Fusibility::Elementwise {
        let splat = |data: &Arc<Literal>| {
            let count = data.ty().elems().get();
            if count == 0 || !data.dtype().part().is_float() {
                return data.clone();
            }
            let bytes = element(data, 0).repeat(count);
            Arc::new(Literal::from_bytes(data.ty().clone(), bytes).expect("as many bytes"))
        };
        return again(call.operands.iter().map(splat).collect()).into_iter().collect();
    }
    let count = call.operands.first().map_or(0, |data| data.ty().elems().get());
    let step = count.div_ceil(SPLATS).max(1);
    let of = |index: usize| {
        let dims: &[u64] = if (index / step).is_multiple_of(2) { &[] } else { &[2] };
        let splat = |data: &Arc<Literal>| {
            let ty = TensorType::of(data.dtype(), dims).expect("small");
            let bytes = element(data, index).repeat(ty.elems().get());
            Arc::new(Literal::from_bytes(ty, bytes).expect("as many bytes"))
        };
        again(call.operands.iter().map(splat).collect())
    };
    // `exp` of two constant f16 NaN was 0.77 once (XLA's CPU plugin, API 0.81, all code of a module
    // in one piece). Most likely LLVM folds the polynomial, in which NaN is converted to an
    // integer, and the result of that is arbitrary. The calls above try NaN among other numbers for
    // every op.
    let may_be_anything =
        |call: &Call| def.rounding == Rounding::Rounded && call.operands.iter().any(|data| data.has_nan());
    (0..count).step_by(step).filter_map(of).filter(|call| !may_be_anything(call)).collect()
}

/// The bytes of one element of a literal.
///
/// # Panics
/// If there is no element with this index.
#[must_use]
pub fn element(literal: &Literal, index: usize) -> &[u8] {
    let size = literal.dtype().size();
    &literal.bytes()[index * size..(index + 1) * size]
}

/// The data with another element at one index.
fn with_one(data: &Literal, place: usize, one: &Literal) -> Literal {
    let size = data.dtype().size();
    let at = place % data.ty().elems().get() * size;
    let mut bytes = data.bytes().to_vec();
    bytes[at..at + size].copy_from_slice(one.bytes());
    Literal::from_bytes(data.ty().clone(), bytes).expect("as many bytes")
}

/// Whether two elements have the same bits.
fn has_ties(data: &Literal) -> bool {
    let mut seen = HashSet::new();
    !data.bytes().chunks_exact(data.dtype().size()).all(|bytes| seen.insert(bytes))
}
