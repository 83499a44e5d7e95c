//! GPU time of a product by the way its operands lie, and of a linear's gradient, from the device's timestamps. Throughput
//! is in multiply-adds, of which each counts two FLOPs. On a CPU that acts as a GPU sizes are tiny.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln::gpu::AdapterChoice;
use kiln::graph::{Builder, DType, Disposition, Graph, Op, TensorType, ValueId};
use kiln::session::{CompileOptions, Program, Session};
use kiln::tensor::Tensor;
use std::collections::BTreeMap;
use std::time::Duration;

/// (M, K, N): a forward product of GPTlite Small, its weight's gradient, and that of the deep DNN.
const SIZES: [[usize; 3]; 3] = [[2048, 768, 3072], [768, 2048, 3072], [256, 2048, 256]];

/// A matrix or what is stored for its transpose.
fn stored([rows, columns]: [usize; 2], transposed: bool) -> TensorType {
    TensorType::new(DType::F32, if transposed { [columns, rows] } else { [rows, columns] })
}

/// (M, K) · (K, N) of two inputs.
fn product([m, k, n]: [usize; 3], ta: bool, tb: bool) -> Graph {
    let mut b = Builder::new();
    let x = b.input("a", stored([m, k], ta)).expect("names differ");
    let y = b.input("b", stored([k, n], tb)).expect("names differ");
    let z = b.matmul_transposed(x, ta, y, tb).expect("the sizes fit");
    b.output_kept("c", z).expect("names differ");
    b.finish().expect("the graph is valid")
}

/// dW (M, N) and db (M) of a linear over K rows.
fn gradient([m, k, n]: [usize; 3]) -> Graph {
    let mut graph = Graph::default();
    let x = graph.push_input(TensorType::new(DType::F32, [k, n]), "x");
    let dy = graph.push_input(TensorType::new(DType::F32, [k, m]), "dy");
    let node = graph.push(Op::LinearGrad { bias: true }, vec![x.into(), dy.into()], "grad").expect("the sizes fit");
    for (output, name) in ["dw", "db"].into_iter().enumerate() {
        graph.push_output(name, ValueId { node, output }, Disposition::Keep).expect("names differ");
    }
    graph
}

/// The time of a run's dispatches, from the first's begin to the last's end.
fn gpu_time(program: &Program, inputs: &[(&str, &Tensor)]) -> Option<Duration> {
    let (_, trace) = program.trace(inputs).expect("a run ends");
    trace.frames[0].gpu_ns().map(Duration::from_nanos)
}

fn layouts(c: &mut Criterion) {
    let session = match Session::open_blocking(&AdapterChoice::Best) {
        Ok(session) => session,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut group = c.benchmark_group(format!("matmul_layouts/{}", session.adapter().name));
    group.sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for size in SIZES {
        let size = if session.caps().cpu { size.map(|d| d / 16) } else { size };
        let [m, k, n] = size;
        let forms = [
            ("a·b", product(size, false, false)),
            ("a·bᵀ", product(size, false, true)),
            ("aᵀ·b", product(size, true, false)),
            ("aᵀ·bᵀ", product(size, true, true)),
            ("gradient", gradient(size)),
        ];
        for (form, graph) in forms {
            let program =
                session.compile(&graph, &BTreeMap::new(), &CompileOptions::default()).expect("a product compiles");
            let tensors: Vec<(String, Tensor)> = (graph.inputs())
                .map(|(id, node)| {
                    let ty = graph.ty(id.into()).clone();
                    let values: Vec<f64> =
                        (0..ty.shape.elements()).map(|i| (i * 7919 % 1021) as f64 / 1021.0).collect();
                    (node.name.clone(), Tensor::from_f64(ty, &values))
                })
                .collect();
            let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
            if gpu_time(&program, &inputs).is_none() {
                return eprintln!("skipped: the adapter gives no timestamps");
            }
            group.throughput(Throughput::Elements((m * k * n) as u64));
            group.bench_function(BenchmarkId::new(form, format!("{m}x{k}x{n}")), |b| {
                b.iter_custom(|iterations| (0..iterations).filter_map(|_| gpu_time(&program, &inputs)).sum());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, layouts);
criterion_main!(benches);
