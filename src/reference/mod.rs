//! In: any [`Graph`], fused or not, with parameters and inputs as tensors; out: its outputs in f64, on the CPU.
//! Knows only graphs and tensors: it is the oracle of the tests and never serves a user silently.
//!
//! Arithmetic is f64 throughout. A value whose type is F16 is rounded to f16 where a node stores it; an F32 one is
//! not rounded. Integers wrap at 32 bits.

mod attention;
mod dropout;
mod elementwise;
mod error;
mod loss;
mod matmul;
mod movement;
mod node;
mod norm;
mod optimiser;
mod parallel;
mod reduce;
mod scalar;
mod stack;
#[cfg(test)]
mod tests;

pub use error::ReferenceError;

use crate::graph::{Graph, Node, NodeId, Op, ParamLayout, Shape, StorageId, TensorType};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// A dense row-major array of f64, whatever its type in the graph; a Bool is 0 or 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Sizes.
    pub shape: Shape,
    /// Elements.
    pub data: Vec<f64>,
}

impl From<&Tensor> for Value {
    fn from(tensor: &Tensor) -> Self {
        Value { shape: tensor.shape().clone(), data: tensor.to_f64() }
    }
}

/// What a run of a graph gives, made by [`evaluate_all`].
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// By output's name.
    pub outputs: BTreeMap<String, Value>,
    /// The states' values after the run, by the name of the state's input.
    pub states: BTreeMap<String, Value>,
}

/// Evaluates a graph's outputs.
///
/// `params` has every parameter under its own name, also where a storage packs several; a float type other than the
/// storage's is converted. `inputs` has every input; a state that it lacks is zero. What the graph does not know is
/// ignored. Errors name what is missing, has another type, or indexes out of range.
pub fn evaluate(
    graph: &Graph,
    params: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Value>, ReferenceError> {
    Ok(evaluate_all(graph, params, inputs, &BTreeMap::new())?.outputs)
}

/// Evaluates outputs and the next values of states. A state is read from `states`, else from `inputs`, else it is
/// zero; so the states of one run, in full precision, can be those of the next.
pub fn evaluate_all(
    graph: &Graph,
    params: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
    states: &BTreeMap<String, Value>,
) -> Result<Evaluation, ReferenceError> {
    let values = run(&Given { graph, params, inputs, states }, false)?;
    let outputs = graph.outputs().iter().map(|o| (o.name.clone(), values[o.value.node.0][o.value.output].clone()));
    let next = graph.updates().iter();
    let states = next.map(|(state, v)| (graph.node(*state).name.clone(), values[v.node.0][v.output].clone()));
    Ok(Evaluation { outputs: outputs.collect(), states: states.collect() })
}

/// Evaluates every node; the result is indexed by node and output. States are read as [`evaluate`] reads them.
pub fn evaluate_nodes(
    graph: &Graph,
    params: &BTreeMap<String, Tensor>,
    inputs: &BTreeMap<String, Tensor>,
) -> Result<Vec<Vec<Value>>, ReferenceError> {
    run(&Given { graph, params, inputs, states: &BTreeMap::new() }, true)
}

/// A storage's value: its parameters, looked up by their own names, each at its place.
pub fn assemble(
    layout: &ParamLayout,
    id: StorageId,
    params: &BTreeMap<String, Tensor>,
) -> Result<Value, ReferenceError> {
    let storage = layout.get(id);
    let mut data = vec![0.0; storage.shape.elements()];
    for part in &storage.parts {
        let expected = TensorType::new(storage.dtype, part.shape.clone());
        let tensor = given("parameter", &part.name, &expected, params)?;
        let range = part.offset..part.offset.saturating_add(part.shape.elements());
        let place = data.get_mut(range).ok_or_else(|| ReferenceError::Layout {
            storage: storage.name.clone(),
            shape: storage.shape.clone(),
            part: part.name.clone(),
            part_shape: part.shape.clone(),
            offset: part.offset,
        })?;
        place.copy_from_slice(&tensor.to_f64());
    }
    node::store(storage.dtype, &mut data);
    Ok(Value { shape: storage.shape.clone(), data })
}

/// A named tensor of the expected type; a parameter may have any float type in place of another.
fn given<'a>(
    kind: &'static str,
    name: &str,
    expected: &TensorType,
    tensors: &'a BTreeMap<String, Tensor>,
) -> Result<&'a Tensor, ReferenceError> {
    let Some(tensor) = tensors.get(name) else {
        return Err(ReferenceError::Missing { kind, name: name.into(), expected: expected.clone() });
    };
    let converts = kind == "parameter" && expected.dtype.is_float() && tensor.dtype().is_float();
    if *tensor.shape() != expected.shape || !(converts || tensor.dtype() == expected.dtype) {
        let (expected, got) = (expected.clone(), tensor.ty().clone());
        return Err(ReferenceError::Type { kind, name: name.into(), expected, got });
    }
    Ok(tensor)
}

struct Given<'a> {
    graph: &'a Graph,
    params: &'a BTreeMap<String, Tensor>,
    inputs: &'a BTreeMap<String, Tensor>,
    states: &'a BTreeMap<String, Value>,
}

impl Given<'_> {
    /// Whether a parameter that is trained has been given a value as a state.
    fn has_state(&self, id: NodeId, node: &Node) -> bool {
        self.states.contains_key(&node.name) && self.graph.is_state(id)
    }

    fn input(&self, id: NodeId, node: &Node) -> Result<Value, ReferenceError> {
        let (name, expected) = (&node.name, &node.outputs[0]);
        if self.graph.is_state(id) {
            if let Some(value) = self.states.get(name) {
                return state(name, expected, value);
            }
            if !self.inputs.contains_key(name) {
                return Ok(Value { shape: expected.shape.clone(), data: vec![0.0; expected.shape.elements()] });
            }
        }
        Ok(given("input", name, expected, self.inputs)?.into())
    }
}

fn state(name: &str, expected: &TensorType, value: &Value) -> Result<Value, ReferenceError> {
    if value.shape == expected.shape && value.data.len() == value.shape.elements() {
        return Ok(value.clone());
    }
    Err(ReferenceError::State {
        name: name.into(),
        expected: expected.clone(),
        got: value.shape.clone(),
        elements: value.data.len(),
    })
}

/// All nodes in order. Unless `keep`, a value is emptied after its last use, so that a big graph fits in memory.
fn run(given: &Given, keep: bool) -> Result<Vec<Vec<Value>>, ReferenceError> {
    let graph = given.graph;
    graph.verify()?;
    let mut uses = graph.use_counts();
    let mut values: Vec<Vec<Value>> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.nodes() {
        let mut outputs = match node.op {
            Op::Input => vec![given.input(id, node)?],
            Op::Parameter(_) if given.has_state(id, node) => vec![given.input(id, node)?],
            Op::Parameter(storage) => vec![assemble(&graph.layout, storage, given.params)?],
            _ => {
                let inputs: Vec<&Value> = node.inputs.iter().map(|v| &values[v.node.0][v.output]).collect();
                node::compute(graph, node, &inputs)?
            }
        };
        if !keep {
            for v in &node.inputs {
                uses[v.node.0][v.output] -= 1;
                if uses[v.node.0][v.output] == 0 {
                    values[v.node.0][v.output].data = Vec::new();
                }
            }
            for (value, uses) in outputs.iter_mut().zip(&uses[id.0]) {
                if *uses == 0 {
                    value.data = Vec::new();
                }
            }
        }
        values.push(outputs);
    }
    Ok(values)
}
