//! What memory limits: rows, elements and updates.

use crate::timing::{dtypes, group, program, resident, scaled, time, time_program};
use criterion::{Criterion, Throughput};
use kiln::graph::{AdamAttrs, Builder, DType, Graph, GraphError, Op, TensorType, ValueId};
use kiln::session::{CompileOptions, Session};
use kiln::tensor::Tensor;

/// A graph of one value that follows from x.
fn of(
    dtype: DType,
    dims: &[usize],
    f: impl FnOnce(&mut Builder, ValueId) -> Result<ValueId, GraphError>,
) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = resident(&mut b, "x", TensorType::new(dtype, dims))?;
    let y = f(&mut b, x)?;
    b.output_kept("y", y)?;
    b.finish()
}

/// x read and y written.
fn through(dtype: DType, elements: usize) -> Throughput {
    Throughput::Bytes((2 * elements * dtype.size()) as u64)
}

pub fn softmax(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "softmax", session);
    let rows = scaled(session, 24_576, 64);
    for (dtype, precision) in dtypes(session) {
        for columns in [65, 2048] {
            let columns = if columns > 65 { scaled(session, columns, 8) } else { columns };
            let graph = of(dtype, &[rows, columns], |b, x| b.softmax(x, 1)).expect("the sizes fit");
            let words = format!("{precision}/{rows}x{columns}");
            time(&mut group, session, words, through(dtype, rows * columns), &graph);
        }
    }
}

pub fn layernorm(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "norm", session);
    let rows = scaled(session, 8192, 16);
    for (dtype, precision) in dtypes(session) {
        for columns in [768, 8192] {
            let columns = scaled(session, columns, 8);
            let graph = of(dtype, &[rows, columns], |b, x| {
                let gamma = b.parameter("ln.weight", TensorType::new(dtype, [columns]))?;
                let beta = b.parameter("ln.bias", TensorType::new(dtype, [columns]))?;
                b.layernorm(x, gamma, beta, 1e-5)
            });
            let words = format!("{precision}/layernorm/{rows}x{columns}");
            time(&mut group, session, words, through(dtype, rows * columns), &graph.expect("the sizes fit"));
        }
    }
}

pub fn elementwise(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "elementwise", session);
    let elements = scaled(session, 1 << 25, 256);
    for (dtype, precision) in dtypes(session) {
        let graphs = [
            ("relu", of(dtype, &[elements], |b, x| b.relu(x))),
            ("gelu_erf", of(dtype, &[elements], |b, x| b.gelu_erf(x))),
            (
                "chain of 8",
                of(dtype, &[elements], |b, x| {
                    (0..4).try_fold(x, |y, i| {
                        let y = b.scale(y, 0.5 + i as f32)?;
                        b.relu(y)
                    })
                }),
            ),
        ];
        for (name, graph) in graphs {
            let words = format!("{precision}/{name}/{elements}");
            time(&mut group, session, words, through(dtype, elements), &graph.expect("the sizes fit"));
        }
    }
}

pub fn adam(c: &mut Criterion, session: &Session) {
    let mut group = group(c, "adam", session);
    for elements in [1 << 16, 1 << 24] {
        let elements = if elements > 1 << 16 { scaled(session, elements, 64) } else { elements };
        let graph = update(elements).expect("the sizes fit");
        // weight and moments read and written, the gradient read
        let bytes = Throughput::Bytes(7 * 4 * elements as u64);
        let program = program(session, &graph, &CompileOptions::default());
        // a second moment is not negative, and the scalars are those of the first step
        let set = |name: &str, value: Tensor| program.write_state(name, &value).expect("the state is written");
        set("v", Tensor::f32([elements], &vec![0.5; elements]));
        set("scalars", Tensor::f32([3], &[1e-3, 0.1, 1e-3]));
        time_program(&mut group, session, format!("f32/{elements}"), bytes, &program);
    }
}

fn update(elements: usize) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let ty = TensorType::new(DType::F32, [elements]);
    let [w, m, v] = [b.state("w", ty.clone())?, b.state("m", ty.clone())?, b.state("v", ty.clone())?];
    let gradient = resident(&mut b, "gradient", ty)?;
    let scalars = resident(&mut b, "scalars", TensorType::new(DType::F32, [3]))?;
    let [beta1, beta2, eps, weight_decay] = [0.9, 0.999, 1e-8, 0.0].map(Into::into);
    let attrs = AdamAttrs { beta1, beta2, eps, weight_decay, decoupled: false, narrow: false };
    let node = b.op(Op::Adam(attrs), &[w, m, v, gradient, scalars])?.node;
    for (output, state) in [w, m, v].into_iter().enumerate() {
        b.update(state, ValueId { node, output })?;
    }
    b.finish()
}
