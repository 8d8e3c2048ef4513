//! Finds which ops of a region became one kernel.
//!
//! XLA provides this: the optimized program of an executable has one instruction for each kernel,
//! and each instruction has the line of our module that it comes from. An op can be in several
//! kernels (XLA recomputes cheap ops rather than storing them) or in none (folded, merged with an
//! equal one, turned into a view). Only the few fields that are needed are decoded.
//!
//! Without such a program, the classes of the op table give an estimate.

use std::collections::HashMap;

use fuseline::fusion::Graph;
use fuseline::fusion::ir::Ref;
use fuseline::fusion::lower::Module;
use fuseline::fusion::op::Fusibility;
use fuseline::pjrt::OptimizedProgram;
use prost::Message;

/// The source of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// The program that the compiler returned.
    Compiled,
    /// The classes of the op table.
    Estimated,
}

/// A unit that the device runs as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// The compiler's name for it.
    pub(super) name: String,
    /// A short description.
    pub(super) kind: String,
    /// The ops it computes, ascending.
    pub(super) nodes: Vec<usize>,
}

/// The kernels of a region.
#[derive(Clone, Debug)]
pub(super) struct Kernels {
    pub(super) basis: Basis,
    pub(super) all: Vec<Kernel>,
    /// For each op, the kernels that compute it.
    of: Vec<Vec<usize>>,
}

impl Kernels {
    fn new(basis: Basis, all: Vec<Kernel>, nodes: usize) -> Kernels {
        let mut of = vec![Vec::new(); nodes];
        for (index, kernel) in all.iter().enumerate() {
            for &node in &kernel.nodes {
                of[node].push(index);
            }
        }
        Kernels { basis, all, of }
    }

    /// The kernels of a region: compiled ones if the program can be read, otherwise an estimate.
    pub(super) fn of(graph: &Graph, compiled: Option<(&OptimizedProgram, &Module)>) -> Kernels {
        let read = compiled.and_then(|(program, module)| read(program, module, graph));
        match read {
            Some(all) => Kernels::new(Basis::Compiled, all, graph.nodes().len()),
            None => Kernels::new(Basis::Estimated, estimate(graph), graph.nodes().len()),
        }
    }

    /// The kernels that compute an op.
    pub(super) fn of_node(&self, node: usize) -> &[usize] {
        &self.of[node]
    }

    /// The name of a kernel in the output: `A`, `B`, ... `Z`, `A1`, ...
    pub(super) fn letter(index: usize) -> String {
        let letter = char::from(b'A' + (index % 26) as u8);
        match index / 26 {
            0 => letter.to_string(),
            round => format!("{letter}{round}"),
        }
    }

    /// Why an op is in its kernel, as a clause.
    pub(super) fn why(&self, graph: &Graph, node: usize) -> String {
        let class = graph.nodes()[node].signature().def().fusibility;
        let list = |kernels: &[usize]| {
            let letters: Vec<String> = kernels.iter().map(|&kernel| Kernels::letter(kernel)).collect();
            letters.join(", ")
        };
        match (self.of_node(node), class) {
            ([], Fusibility::Source) => {
                "in no kernel of its own: it is part of the kernels that use it".to_owned()
            }
            ([], Fusibility::Movement) => {
                "in no kernel: it became a view, or part of the indexing of other ops".to_owned()
            }
            ([], _) => "in no kernel: merged with an equal op, folded, or rewritten".to_owned(),
            (&[kernel], class) => {
                let others = self.all[kernel].nodes.len() - 1;
                let letter = Kernels::letter(kernel);
                match (others, class) {
                    (0, Fusibility::Contraction) => {
                        format!("kernel {letter}, by itself: contractions are not fused")
                    }
                    (0, Fusibility::Opaque) => format!("kernel {letter}, by itself: it does not fuse"),
                    (0, _) => format!("kernel {letter}, by itself"),
                    (1, _) => format!("kernel {letter}, fused with 1 other op"),
                    _ => format!("kernel {letter}, fused with {others} other ops"),
                }
            }
            (several, _) => {
                format!("kernels {}: computed in each of them instead of stored", list(several))
            }
        }
    }
}

/// `HloModuleProtoWithConfig`.
#[derive(Clone, PartialEq, Message)]
struct HloModuleWithConfig {
    #[prost(message, optional, tag = "1")]
    module: Option<HloModule>,
}

/// `HloModuleProto`.
#[derive(Clone, PartialEq, Message)]
struct HloModule {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<HloComputation>,
    #[prost(int64, tag = "6")]
    entry: i64,
}

/// `HloComputationProto`.
#[derive(Clone, PartialEq, Message)]
struct HloComputation {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<HloInstruction>,
    #[prost(int64, tag = "5")]
    id: i64,
}

/// `HloInstructionProto`.
#[derive(Clone, PartialEq, Message)]
struct HloInstruction {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(message, optional, tag = "7")]
    metadata: Option<OpMetadata>,
    #[prost(string, tag = "11")]
    fusion_kind: String,
    #[prost(string, tag = "28")]
    custom_call_target: String,
    #[prost(int64, repeated, tag = "38")]
    called: Vec<i64>,
}

/// `OpMetadata`.
#[derive(Clone, PartialEq, Message)]
struct OpMetadata {
    #[prost(int32, tag = "4")]
    source_line: i32,
}

/// The depth at which nested computations are no longer followed.
const MAX_DEPTH: usize = 8;

/// The kernels of an optimized program; `None` if it cannot be read or lacks source lines.
fn read(program: &OptimizedProgram, module: &Module, graph: &Graph) -> Option<Vec<Kernel>> {
    let bytes = program.bytes.as_slice();
    let hlo = match program.format.as_str() {
        "hlo" => HloModule::decode(bytes).ok()?,
        "hlo_with_config" => HloModuleWithConfig::decode(bytes).ok()?.module?,
        _ => return None,
    };
    let mut reader = Reader {
        computations: hlo.computations.iter().map(|computation| (computation.id, computation)).collect(),
        module,
        graph,
        kernels: Vec::new(),
        nameless: Vec::new(),
    };
    reader.kernels_of(hlo.entry, 0);
    reader.name_contractions();
    let mut kernels = reader.kernels;
    for kernel in &mut kernels {
        kernel.nodes.sort_unstable();
        kernel.nodes.dedup();
    }
    kernels.retain(|kernel| !kernel.nodes.is_empty());
    (!kernels.is_empty() || graph.nodes().is_empty()).then_some(kernels)
}

/// Whether an instruction only moves elements. XLA creates such instructions when it rewrites
/// others and copies their source line. So they are attributed only to ops that move elements.
fn moves(opcode: &str) -> bool {
    matches!(
        opcode,
        "bitcast"
            | "broadcast"
            | "copy"
            | "reshape"
            | "transpose"
            | "slice"
            | "pad"
            | "concatenate"
            | "reverse"
            | "iota"
    )
}

struct Reader<'a> {
    computations: HashMap<i64, &'a HloComputation>,
    module: &'a Module,
    graph: &'a Graph,
    kernels: Vec<Kernel>,
    /// Kernels that are a product or a convolution without a source line.
    nameless: Vec<usize>,
}

impl Reader<'_> {
    /// Each instruction of a computation that is run by itself is a kernel.
    fn kernels_of(&mut self, computation: i64, depth: usize) {
        let Some(&computation) = self.computations.get(&computation) else { return };
        for instruction in &computation.instructions {
            let kind = match instruction.opcode.as_str() {
                "parameter" | "constant" | "tuple" | "get-tuple-element" | "bitcast" => continue,
                // XLA's CPU backend wraps an op that it splits over threads in a call.
                "call" if depth < MAX_DEPTH => {
                    for &called in &instruction.called {
                        self.kernels_of(called, depth + 1);
                    }
                    continue;
                }
                "fusion" => match instruction.fusion_kind.trim_start_matches('k') {
                    "" => "fusion".to_owned(),
                    kind => format!("{} fusion", kind.to_lowercase()),
                },
                "custom-call" => format!("call of {}", instruction.custom_call_target),
                opcode @ ("dot" | "convolution") => format!("{opcode}, a library call or a separate loop"),
                opcode => opcode.to_owned(),
            };
            let mut nodes = Vec::new();
            self.nodes_of(instruction, &mut nodes, 0);
            if nodes.is_empty()
                && matches!(instruction.opcode.as_str(), "dot" | "convolution" | "custom-call")
            {
                self.nameless.push(self.kernels.len());
            }
            self.kernels.push(Kernel { name: instruction.name.clone(), kind, nodes });
        }
    }

    /// XLA rewrites batched products without a source line. If as many products have no kernel as
    /// kernels have no product, they are matched in order.
    fn name_contractions(&mut self) {
        let known = |node: &usize| self.kernels.iter().any(|kernel| kernel.nodes.contains(node));
        let classes = self.graph.nodes().iter().map(|node| node.signature().def().fusibility).enumerate();
        let contractions = classes.filter(|&(_, class)| class == Fusibility::Contraction);
        let missing: Vec<usize> = contractions.map(|(node, _)| node).filter(|node| !known(node)).collect();
        if missing.len() == self.nameless.len() {
            for (node, kernel) in missing.into_iter().zip(std::mem::take(&mut self.nameless)) {
                self.kernels[kernel].nodes.push(node);
            }
        }
    }

    /// The ops that an instruction comes from. The reducer of a reduction is not followed: XLA
    /// shares equal reducers, so their lines may belong to another op.
    fn nodes_of(&self, instruction: &HloInstruction, nodes: &mut Vec<usize>, depth: usize) {
        let opcode = instruction.opcode.as_str();
        // A fusion has the line of its last instruction, which is visited itself.
        if !matches!(opcode, "fusion" | "call" | "parameter" | "constant") {
            let line = instruction.metadata.as_ref().map_or(0, |metadata| metadata.source_line);
            let node = usize::try_from(line).ok().and_then(|line| self.module.node_of_line(line));
            let class =
                node.and_then(|node| Some(self.graph.nodes().get(node)?.signature().def().fusibility));
            let tells = match class {
                None => false,
                Some(Fusibility::Movement | Fusibility::Source) => true,
                Some(_) => !moves(opcode),
            };
            nodes.extend(node.filter(|_| tells));
        }
        if depth >= MAX_DEPTH || !matches!(opcode, "fusion" | "call" | "while" | "conditional") {
            return;
        }
        for computation in instruction.called.iter().filter_map(|called| self.computations.get(called)) {
            for instruction in &computation.instructions {
                self.nodes_of(instruction, nodes, depth + 1);
            }
        }
    }
}

/// Estimates the kernels from the op table. Elementwise ops and moves join the kernel of an
/// operand. A reduction ends its kernel. Other ops form kernels of their own, and sources belong to
/// their users. A kernel has a level above those it reads. An op joins a kernel only if everything
/// else it reads lies below that level, so kernels never depend on each other in a cycle.
fn estimate(graph: &Graph) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    let mut levels: Vec<usize> = Vec::new();
    let mut open: Vec<bool> = Vec::new();
    let mut of: Vec<Option<usize>> = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let class = node.signature().def().fusibility;
        if class == Fusibility::Source {
            of.push(None);
            continue;
        }
        let joins = matches!(class, Fusibility::Elementwise | Fusibility::Movement | Fusibility::Reduction);
        let maker = |&value: &Ref| graph.maker(value).and_then(|maker| of[maker]);
        let read: Vec<usize> = node.operands().iter().filter_map(maker).collect();
        let highest = read.iter().copied().max_by_key(|&kernel| levels[kernel]);
        let home = highest.filter(|&home| {
            joins && open[home] && read.iter().all(|&kernel| kernel == home || levels[kernel] < levels[home])
        });
        let home = home.unwrap_or_else(|| {
            kernels.push(Kernel { name: String::new(), kind: String::new(), nodes: Vec::new() });
            levels.push(highest.map_or(0, |highest| levels[highest] + 1));
            open.push(joins);
            kernels.len() - 1
        });
        kernels[home].nodes.push(index);
        open[home] &= class != Fusibility::Reduction;
        of.push(Some(home));
    }
    for kernel in &mut kernels {
        let names: Vec<&str> =
            kernel.nodes.iter().map(|&node| graph.nodes()[node].signature().op().name()).collect();
        kernel.name = names.join("_");
        kernel.kind = if names.len() > 1 { "estimated fusion" } else { "estimated, not fused" }.to_owned();
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;
    use fuseline::fusion::TensorType;
    use fuseline::fusion::canon::CanonRegion;
    use fuseline::fusion::lower::{Aliases, Numerics, lower};
    use fuseline::{Attrs, DType, OpCode};

    /// `tanh(x + x) * x`, and the negative of the sum.
    fn graph() -> Graph {
        let mut graph = Graph::new();
        let x = graph.param(TensorType::of(DType::F32, &[4]).expect("small"));
        let sum = graph.push(OpCode::Add, Attrs::none(), &[], &[x, x]).expect("an op")[0];
        let tanh = graph.push(OpCode::Tanh, Attrs::none(), &[], &[sum]).expect("an op")[0];
        graph.push(OpCode::Multiply, Attrs::none(), &[], &[tanh, x]).expect("an op");
        graph.push(OpCode::Negate, Attrs::none(), &[], &[sum]).expect("an op");
        graph
    }

    fn instruction(opcode: &str, line: i32, called: &[i64]) -> HloInstruction {
        HloInstruction {
            name: format!("{opcode}.{line}"),
            opcode: opcode.to_owned(),
            metadata: Some(OpMetadata { source_line: line }),
            called: called.to_vec(),
            ..HloInstruction::default()
        }
    }

    #[test]
    fn kernels_are_read_from_the_compilers_program() {
        let graph = graph();
        let region = CanonRegion::new(graph.clone(), Box::new([false]));
        let module = lower(&region, &[2, 3], &Aliases::none(), Numerics::Fast);
        // Line 3 is the first op. Kernel one has the sum and the product. Kernel two, inside a
        // call, has the sum again, negated.
        let computation =
            |id, instructions: &[HloInstruction]| HloComputation { id, instructions: instructions.to_vec() };
        let hlo = HloModule {
            entry: 9,
            computations: vec![
                computation(
                    1,
                    &[
                        instruction("parameter", 0, &[]),
                        instruction("add", 3, &[]),
                        instruction("multiply", 5, &[]),
                    ],
                ),
                computation(2, &[instruction("add", 3, &[]), instruction("negate", 6, &[])]),
                computation(3, &[instruction("fusion", 6, &[2])]),
                computation(
                    9,
                    &[
                        instruction("fusion", 5, &[1]),
                        instruction("call", 6, &[3]),
                        instruction("tuple", 0, &[]),
                    ],
                ),
            ],
        };
        let program = OptimizedProgram { format: "hlo".to_owned(), bytes: hlo.encode_to_vec() };
        let kernels = Kernels::of(&graph, Some((&program, &module)));
        assert_eq!(kernels.basis, Basis::Compiled);
        let nodes: Vec<&[usize]> = kernels.all.iter().map(|kernel| kernel.nodes.as_slice()).collect();
        assert_eq!(nodes, [&[0, 2][..], &[0, 3]]);
        assert_eq!(kernels.of_node(0), [0, 1]);
        assert!(kernels.why(&graph, 0).contains("kernels A, B"));
        assert!(kernels.why(&graph, 1).contains("in no kernel"));
        assert_eq!(kernels.why(&graph, 3), "kernel B, fused with 1 other op");
    }

    #[test]
    fn what_cannot_be_read_is_estimated() {
        let graph = graph();
        let region = CanonRegion::new(graph.clone(), Box::new([false]));
        let module = lower(&region, &[2], &Aliases::none(), Numerics::Fast);
        for (format, bytes) in [("hlo", vec![0xff; 40]), ("hlo", Vec::new()), ("smoke signals", vec![1])] {
            let program = OptimizedProgram { format: format.to_owned(), bytes };
            let kernels = Kernels::of(&graph, Some((&program, &module)));
            assert_eq!(kernels.basis, Basis::Estimated);
            assert_eq!(kernels.all.len(), 1, "{kernels:?}");
            assert_eq!(kernels.all[0].nodes, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn a_circle_of_programs_ends() {
        let graph = graph();
        let region = CanonRegion::new(graph.clone(), Box::new([false]));
        let module = lower(&region, &[2], &Aliases::none(), Numerics::Fast);
        for opcode in ["call", "fusion"] {
            let hlo = HloModule {
                entry: 1,
                computations: vec![HloComputation {
                    id: 1,
                    instructions: vec![instruction(opcode, 3, &[1]), instruction("add", 3, &[])],
                }],
            };
            let program = OptimizedProgram { format: "hlo".to_owned(), bytes: hlo.encode_to_vec() };
            let kernels = Kernels::of(&graph, Some((&program, &module)));
            assert!(!kernels.of_node(0).is_empty(), "{opcode}");
        }
    }

    #[test]
    fn letters_go_on() {
        assert_eq!([0, 25, 26, 53].map(Kernels::letter), ["A", "Z", "A1", "B2"]);
    }
}
