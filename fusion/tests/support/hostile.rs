//! Calls made from choices, and calls that may violate the op table: sizes and numbers at which
//! rules could break.
//!
//! Input: a source of choices. Used by the property tests and the fuzz targets; an op is covered
//! once it has a row.

use std::sync::Arc;

use fuseline_fusion::op::{OpDef, Replicas};
use fuseline_fusion::{
    AttrValue, Attrs, Body, DType, DTypeSet, Graph, Groups, Literal, OpError, Ref, Shape, Signature,
    TensorType, handler,
};
use fuseline_testgen::{Aim, Domain, Entropy, SampleOperand, Sampler, fill};

/// A call with the data of its operands on each replica.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub signature: Arc<Signature>,
    pub replicas: Vec<Vec<Arc<Literal>>>,
}

/// Types for the operands of sampled calls.
fn pool() -> Vec<TensorType> {
    let types: [(DType, &[u64]); 6] = [
        (DType::F32, &[2, 3]),
        (DType::F32, &[]),
        (DType::I32, &[3]),
        (DType::Bool, &[2, 3]),
        (DType::BF16, &[4, 1, 2]),
        (DType::U8, &[0, 2]),
    ];
    types.iter().map(|(dtype, dims)| TensorType::of(*dtype, dims).expect("small")).collect()
}

/// A call of the op; `None` if the choices lead to no call.
pub fn sampled(def: &'static OpDef, entropy: &mut dyn Entropy, aim: Aim) -> Option<Sampled> {
    let pool = pool();
    let replicas = match def.replicas {
        Replicas::Apart => 1,
        _ => pick(entropy, &[2, 3, 4, 6, 1]),
    };
    let sampler = Sampler::new(def, &mut *entropy, &pool, DTypeSet::ANY, aim);
    let sample = sampler.replicas(replicas).sample()?;
    let mut data = |operand: &SampleOperand| match operand {
        SampleOperand::Pool(index) => Arc::new(fill(&mut *entropy, &pool[*index], Domain::Any, aim)),
        SampleOperand::Fresh(ty, domain) => Arc::new(fill(&mut *entropy, ty, *domain, aim)),
        SampleOperand::Given(data) => data.clone(),
    };
    let replicas: Vec<Vec<Arc<Literal>>> =
        (0..replicas).map(|_| sample.operands.iter().map(&mut data).collect()).collect();
    let types: Vec<TensorType> = replicas[0].iter().map(|data| data.ty().clone()).collect();
    let signature = Signature::infer(def.code, sample.attrs, &sample.bodies, &types)
        .unwrap_or_else(|error| panic!("a sample of {} is refused: {error}", def.name));
    Some(Sampled { signature: Arc::new(signature), replicas })
}

/// The call as a graph of one op over parameters, one per operand.
pub fn graph_of(signature: &Arc<Signature>) -> Graph {
    let mut graph = Graph::new();
    let operands: Vec<Ref> = signature.operands().iter().map(|ty| graph.param(ty.clone())).collect();
    graph.push_signature(signature.clone(), operands.into());
    graph
}

/// One of a list.
pub fn pick<T: Clone>(entropy: &mut dyn Entropy, items: &[T]) -> T {
    items[entropy.draw(items.len() as u32) as usize].clone()
}

/// An index into a list of this length.
pub fn place(entropy: &mut dyn Entropy, len: usize) -> usize {
    entropy.draw(len as u32) as usize
}

/// Integers at which rules could break.
pub const HOSTILE_INTS: [i64; 18] = [
    -1,
    0,
    1,
    2,
    3,
    -2,
    7,
    16,
    17,
    64,
    i32::MAX as i64,
    i32::MIN as i64,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
];

/// Sizes at which rules could break.
pub const HOSTILE_DIMS: [u64; 10] = [0, 1, 2, 5, 1 << 20, 1 << 31, 1 << 40, 1 << 58, (1 << 59) - 1, u64::MAX];

fn hostile_list<T: Clone>(
    entropy: &mut dyn Entropy,
    list: &mut Vec<T>,
    new: &mut dyn FnMut(&mut dyn Entropy) -> T,
) {
    let at = place(entropy, list.len());
    match entropy.draw(6) {
        0 | 1 if !list.is_empty() => list[at] = new(entropy),
        2 if !list.is_empty() => {
            list.remove(at);
        }
        3 if !list.is_empty() => list.push(list[at].clone()),
        4 => {
            let many = pick(entropy, &[3, 20, 300]);
            list.resize(many, new(entropy));
        }
        _ => list.insert(at, new(entropy)),
    }
}

/// A type, possibly large; `None` if the library refuses it, as it refuses everything beyond the
/// limits.
pub fn hostile_type(entropy: &mut dyn Entropy, like: &TensorType) -> Option<TensorType> {
    let mut dims = like.dims().to_vec();
    let mut dtype = like.dtype();
    match entropy.draw(3) {
        0 => dtype = pick(entropy, &DType::ALL),
        1 => hostile_list(entropy, &mut dims, &mut |entropy| pick(entropy, &HOSTILE_DIMS)),
        _ => {
            dims.resize(pick(entropy, &[0, 1, 2, 5, 8, 15, 16, 17]), 1);
        }
    }
    TensorType::of(dtype, &dims).ok()
}

/// A replacement for an attribute, of the same kind or not.
pub fn hostile_value(entropy: &mut dyn Entropy, value: &AttrValue) -> AttrValue {
    // Half of them are small: sizes, steps and dimension numbers that are slightly wrong.
    let int = |entropy: &mut dyn Entropy| match entropy.draw(2) {
        0 => pick(entropy, &[0, -1, 1, 2, 3]),
        _ => pick(entropy, &HOSTILE_INTS),
    };
    if entropy.draw(16) == 15 {
        return pick(
            entropy,
            &[
                AttrValue::Absent,
                AttrValue::Int(-1),
                AttrValue::Bool(true),
                AttrValue::Enum(255),
                AttrValue::Shape(Shape::scalar()),
                AttrValue::Struct(Box::new([])),
                AttrValue::DType(DType::F64),
            ],
        );
    }
    match value {
        AttrValue::Absent => AttrValue::Enums([0, 0, 9].into_iter().take(place(entropy, 4)).collect()),
        AttrValue::Int(_) => AttrValue::Int(int(entropy)),
        AttrValue::Bool(value) => AttrValue::Bool(!value),
        AttrValue::Float(_) => {
            pick(entropy, &[0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MIN_POSITIVE])
                .into()
        }
        AttrValue::Ints(list) => {
            let mut list = list.to_vec();
            hostile_list(entropy, &mut list, &mut |entropy| int(entropy));
            AttrValue::Ints(list.into())
        }
        AttrValue::Bools(list) => {
            let mut list = list.to_vec();
            hostile_list(entropy, &mut list, &mut |entropy| entropy.draw(2) == 1);
            AttrValue::Bools(list.into())
        }
        AttrValue::Pairs(list) => {
            let mut list = list.to_vec();
            hostile_list(entropy, &mut list, &mut |entropy| (int(entropy), int(entropy)));
            AttrValue::Pairs(list.into())
        }
        AttrValue::Groups(groups) => {
            let mut rows: Vec<Vec<i64>> = groups.rows().map(<[i64]>::to_vec).collect();
            let at = place(entropy, rows.len());
            match rows.get_mut(at) {
                Some(row) if entropy.draw(3) > 0 => {
                    hostile_list(entropy, row, &mut |entropy| int(entropy));
                }
                _ => hostile_list(entropy, &mut rows, &mut |entropy| vec![int(entropy)]),
            }
            AttrValue::Groups(Groups::new(&rows))
        }
        AttrValue::Enum(_) => AttrValue::Enum(pick(entropy, &[0, 1, 2, 3, 4, 5, 6, 255])),
        AttrValue::Enums(list) => {
            let mut list = list.to_vec();
            hostile_list(entropy, &mut list, &mut |entropy| pick(entropy, &[0, 1, 2, 255]));
            AttrValue::Enums(list.into())
        }
        AttrValue::DType(_) => AttrValue::DType(pick(entropy, &DType::ALL)),
        AttrValue::Shape(shape) => {
            let mut dims = shape.dims().to_vec();
            hostile_list(entropy, &mut dims, &mut |entropy| pick(entropy, &HOSTILE_DIMS));
            AttrValue::Shape(Shape::new(&dims).unwrap_or_default())
        }
        AttrValue::Dense(data) => {
            let mut bytes = data.bytes().to_vec();
            let other = match bytes.len() {
                0 => Literal::scalar(1i8),
                len => {
                    // Another element. For bool, bytes other than 0 and 1 are refused.
                    bytes[place(entropy, len)] ^= 1;
                    Literal::from_bytes(data.ty().clone(), bytes).unwrap_or_else(|_| Literal::scalar(1i8))
                }
            };
            AttrValue::Dense(Arc::new(other))
        }
        AttrValue::Name(name) => {
            let mut chars: Vec<char> = name.chars().collect();
            hostile_list(entropy, &mut chars, &mut |entropy| {
                pick(entropy, &['a', '-', '"', '\\', '\n', 'é'])
            });
            AttrValue::Name(chars.into_iter().collect::<String>().into())
        }
        AttrValue::Config(config) => {
            let mut entries = config.entries().to_vec();
            let names = ["axis", "", "a b", handler::TARGET_KEY, "x}", "scale"];
            entries.push((
                pick(entropy, &names).into(),
                handler::ConfigValue::Text(pick(entropy, &["a", "\"", "}"]).into()),
            ));
            let at = place(entropy, entries.len());
            entries.swap_remove(at);
            AttrValue::Config(handler::Config::of(entries))
        }
        AttrValue::Struct(values) => {
            let mut values = values.to_vec();
            if !values.is_empty() {
                let at = place(entropy, values.len());
                if entropy.draw(16) == 15 {
                    values.remove(at);
                } else {
                    values[at] = hostile_value(entropy, &values[at]);
                }
            }
            AttrValue::Struct(values.into())
        }
    }
}

/// A call that may violate the op table.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub def: &'static OpDef,
    pub operands: Vec<TensorType>,
    pub attrs: Attrs,
    pub bodies: Vec<Arc<Body>>,
}

impl Attempt {
    pub fn of(signature: &Signature) -> Attempt {
        Attempt {
            def: signature.def(),
            operands: signature.operands().to_vec(),
            attrs: signature.attrs().clone(),
            bodies: signature.bodies().to_vec(),
        }
    }

    /// Changes an attribute, if the op has one.
    pub fn change_attr(&mut self, entropy: &mut dyn Entropy) {
        let mut values = self.attrs.values().to_vec();
        if !values.is_empty() {
            let at = place(entropy, values.len());
            values[at] = hostile_value(entropy, &values[at]);
        }
        self.attrs = values.into_iter().collect();
    }

    /// Changes the call in one respect.
    pub fn change(&mut self, entropy: &mut dyn Entropy) {
        let operand = place(entropy, self.operands.len());
        match entropy.draw(12) {
            0..=3 => self.change_attr(entropy),
            4..=7 if !self.operands.is_empty() => {
                if let Some(ty) = hostile_type(entropy, &self.operands[operand]) {
                    self.operands[operand] = ty;
                }
            }
            8 if !self.operands.is_empty() => {
                self.operands.remove(operand);
            }
            9 if !self.operands.is_empty() => {
                let count = pick(entropy, &[1, 1, 2, 3_000]);
                self.operands.extend(vec![self.operands[operand].clone(); count]);
            }
            10 if !self.operands.is_empty() => {
                let other = place(entropy, self.operands.len());
                self.operands.swap(operand, other);
            }
            11 if !self.bodies.is_empty() => {
                let at = place(entropy, self.bodies.len());
                match entropy.draw(3) {
                    0 => {
                        self.bodies.remove(at);
                    }
                    1 => self.bodies.push(self.bodies[at].clone()),
                    _ => {
                        let graph = self.bodies[at].graph();
                        let returns = self.bodies[at].returns();
                        let fewer = &returns[..place(entropy, returns.len())];
                        self.bodies[at] = Arc::new(Body::new(graph.clone(), fewer).expect("they exist"));
                    }
                }
            }
            _ => {
                let mut values = self.attrs.values().to_vec();
                if values.pop().is_none() || entropy.draw(2) == 1 {
                    values = [values, vec![AttrValue::Int(0); 2]].concat();
                }
                self.attrs = values.into_iter().collect();
            }
        }
    }

    pub fn infer(&self) -> Result<Signature, OpError> {
        Signature::infer(self.def.code, self.attrs.clone(), &self.bodies, &self.operands)
    }
}
