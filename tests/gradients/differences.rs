//! In: a value computed from others; out: a failure where the gradients of a loss of it are not its central differences.
//! What is differentiated is state, since states are given in f64 and can be moved a little.

use crate::written::Numbers;
use kiln::fuse::{FuseLimits, fuse};
use kiln::grad::gradients;
use kiln::graph::{DType, Disposition, Graph, Op, Reduction, Shape, TensorType, ValueId};
use kiln::reference::{ReferenceError, Value, evaluate_all};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;

/// How far an element is moved, up and down.
const STEP: f64 = 1e-5;
/// Largest error of a gradient, relative to its tensor's largest element.
pub const TOLERANCE: f64 = 1e-6;

type Values = BTreeMap<String, Value>;

/// A graph in the making.
pub struct Check {
    pub graph: Graph,
    pub states: Values,
    pub inputs: BTreeMap<String, Tensor>,
    numbers: Numbers,
}

impl Default for Check {
    fn default() -> Self {
        let (graph, states, inputs) = Default::default();
        Check { graph, states, inputs, numbers: Numbers(7) }
    }
}

impl Check {
    /// A value in −1..1 to differentiate by.
    pub fn x(&mut self, dims: &[usize]) -> ValueId {
        self.x_of(dims, |v| v)
    }

    /// A value to differentiate by, a function of numbers in −1..1.
    pub fn x_of(&mut self, dims: &[usize], f: impl Fn(f64) -> f64) -> ValueId {
        let shape = Shape::from(dims);
        let data: Vec<f64> = (0..shape.elements()).map(|_| f(self.numbers.next())).collect();
        self.x_at(dims, &data)
    }

    /// A value to differentiate by, of these elements.
    pub fn x_at(&mut self, dims: &[usize], data: &[f64]) -> ValueId {
        let name = format!("x{}", self.states.len());
        let node = self.graph.push_input(TensorType::new(DType::F32, dims), &name);
        self.graph.push_update(node, node.into()).unwrap();
        self.states.insert(name, Value { shape: dims.into(), data: data.to_vec() });
        node.into()
    }

    /// An input that is not differentiated by.
    pub fn given(&mut self, dtype: DType, dims: &[usize], values: &[f64]) -> ValueId {
        let (name, ty) = (format!("given{}", self.inputs.len()), TensorType::new(dtype, dims));
        self.inputs.insert(name.clone(), Tensor::from_f64(ty.clone(), values));
        self.graph.push_input(ty, name).into()
    }

    /// A random input that is not differentiated by.
    pub fn noise(&mut self, dims: &[usize]) -> ValueId {
        let values: Vec<f64> = (0..Shape::from(dims).elements()).map(|_| self.numbers.next()).collect();
        self.given(DType::F32, dims, &values)
    }

    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.graph.push(op, inputs.to_vec(), "t").unwrap().into()
    }

    /// Declares the loss Σ y · weights with random weights, so that every element of dy differs.
    pub fn loss(&mut self, y: ValueId) -> ValueId {
        let shape = self.graph.shape(y).clone();
        let weights = self.noise(shape.dims());
        let weighted = self.op(Op::Binary(kiln::graph::Binary::Mul), &[y, weights]);
        let axes = (0..shape.rank()).collect();
        let loss = self.op(Op::Reduce { kind: Reduction::Sum, axes, keepdim: false }, &[weighted]);
        self.graph.push_output("loss", loss, Disposition::Read).unwrap();
        loss
    }

    fn evaluate(&self, graph: &Graph, states: &Values) -> Values {
        evaluate_all(graph, &BTreeMap::new(), &self.inputs, states).unwrap_or_else(|e| panic!("{e}\n{graph}")).outputs
    }

    /// What a value is.
    pub fn value(&self, of: ValueId) -> Vec<f64> {
        self.try_value(of).unwrap_or_else(|e| panic!("{e}\n{}", self.graph))
    }

    /// What a value is, or why it has none.
    pub fn try_value(&self, of: ValueId) -> Result<Vec<f64>, ReferenceError> {
        let mut graph = self.graph.clone();
        graph.push_output("value", of, Disposition::Read)?;
        let mut outputs = evaluate_all(&graph, &BTreeMap::new(), &self.inputs, &self.states)?.outputs;
        Ok(outputs.remove("value").unwrap().data)
    }

    /// The states by name with the values that stand for them.
    fn xs(&self) -> Vec<(String, ValueId)> {
        self.graph.updates().iter().map(|(node, v)| (self.graph.node(*node).name.clone(), *v)).collect()
    }

    /// The gradients of a loss by the states of these places, by name; the same graph fused gives the same.
    pub fn gradients(&self, loss: ValueId, places: &[usize]) -> Values {
        let xs: Vec<_> = places.iter().map(|i| self.xs()[*i].clone()).collect();
        let mut graph = self.graph.clone();
        let found = gradients(&mut graph, loss, &xs.iter().map(|x| x.1).collect::<Vec<_>>()).unwrap();
        for ((name, x), dx) in xs.iter().zip(found) {
            assert_eq!(graph.ty(dx), graph.ty(*x), "{name}");
            graph.push_output(name, dx, Disposition::Read).unwrap();
        }
        let mut values = self.evaluate(&graph, &self.states);
        let (fused, report) = fuse(&graph, &FuseLimits::default()).unwrap();
        for (name, fused_value) in self.evaluate(&fused, &self.states) {
            let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
            let all = fused_value.data.iter().zip(&values[&name].data).all(same);
            assert!(all, "{name}: fused differs\n{graph}\n{fused}\n{report}");
        }
        values.remove("loss");
        values
    }

    /// Compares the gradients of [`Check::loss`] of y with central differences.
    pub fn check(mut self, what: &str, y: ValueId) -> Graph {
        let loss = self.loss(y);
        let all: Vec<usize> = (0..self.states.len()).collect();
        let gradients = self.gradients(loss, &all);
        for (i, (name, dx)) in gradients.iter().enumerate() {
            let alone = &self.gradients(loss, &[i])[name];
            assert_eq!(alone, dx, "{what}: {name} alone has another gradient");
            let expected: Vec<f64> = (0..dx.data.len()).map(|at| self.difference(name, at)).collect();
            let largest = expected.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            for (at, (got, want)) in dx.data.iter().zip(&expected).enumerate() {
                let close = (got - want).abs() <= TOLERANCE * largest + 2e-9;
                assert!(close, "{what}: d{name}[{at}] is {got}, differences give {want}\n{}", self.graph);
            }
        }
        self.graph
    }

    /// The central difference of the loss by an element of a state.
    fn difference(&self, name: &str, at: usize) -> f64 {
        let moved = |by: f64| {
            let mut states = self.states.clone();
            states.get_mut(name).unwrap().data[at] += by;
            self.evaluate(&self.graph, &states)["loss"].data[0]
        };
        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
    }
}

/// Ops that a test has gone through.
#[derive(Default)]
pub struct Seen(pub Vec<Op>);

impl Seen {
    /// Checks a value against differences and notes its ops.
    pub fn check(&mut self, what: &str, build: impl FnOnce(&mut Check) -> ValueId) {
        let mut check = Check::default();
        let y = build(&mut check);
        let graph = check.check(what, y);
        self.0.extend(graph.nodes().map(|(_, n)| n.op.clone()));
    }
}
