//! GPU time of a product by the way its operands lie, and of a linear's gradient. Throughput is in multiply-adds, of which
//! each counts two FLOPs. On a CPU that acts as a GPU sizes are tiny.

mod timing;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kiln::graph::{Builder, DType, Graph, GraphError, Op, TensorType, ValueId};
use timing::resident;

/// (M, K, N): a forward product of GPTlite Small, its weight's gradient, and that of the deep DNN.
const SIZES: [[usize; 3]; 3] = [[2048, 768, 3072], [768, 2048, 3072], [256, 2048, 256]];

/// A matrix or what is stored for its transpose.
fn stored([rows, columns]: [usize; 2], transposed: bool) -> TensorType {
    TensorType::new(DType::F32, if transposed { [columns, rows] } else { [rows, columns] })
}

/// (M, K) · (K, N).
fn product([m, k, n]: [usize; 3], ta: bool, tb: bool) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = resident(&mut b, "a", stored([m, k], ta))?;
    let y = resident(&mut b, "b", stored([k, n], tb))?;
    let z = b.matmul_transposed(x, ta, y, tb)?;
    b.output_kept("c", z)?;
    b.finish()
}

/// dW (M, N) and db (M) of a linear over K rows.
fn gradient([m, k, n]: [usize; 3]) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = resident(&mut b, "x", TensorType::new(DType::F32, [k, n]))?;
    let dy = resident(&mut b, "dy", TensorType::new(DType::F32, [k, m]))?;
    let node = b.op(Op::LinearGrad { bias: true }, &[x, dy])?.node;
    for (output, name) in ["dw", "db"].into_iter().enumerate() {
        b.output_kept(name, ValueId { node, output })?;
    }
    b.finish()
}

fn layouts(c: &mut Criterion) {
    let Some(session) = timing::session() else { return };
    let mut group = timing::group(c, "matmul_layouts", &session);
    for size in SIZES {
        let size = size.map(|d| timing::scaled(&session, d, 16));
        let [m, k, n] = size;
        let forms = [
            ("a·b", product(size, false, false)),
            ("a·bᵀ", product(size, false, true)),
            ("aᵀ·b", product(size, true, false)),
            ("aᵀ·bᵀ", product(size, true, true)),
            ("gradient", gradient(size)),
        ];
        for (form, graph) in forms {
            let graph = graph.expect("the sizes fit");
            let throughput = Throughput::Elements((m * k * n) as u64);
            timing::time(&mut group, &session, format!("{form}/{m}x{k}x{n}"), throughput, &graph);
        }
    }
    group.finish();
}

criterion_group!(benches, layouts);
criterion_main!(benches);
