//! GPU time of each op in f32 and, where the device has it, f16: products of square matrices and of the three models' shapes,
//! linears with each epilogue, attention forward and backward, softmax, layernorm, element-wise chains and Adam. Throughput
//! is in multiply-adds for products and attention, in bytes read and written for the others. On a CPU that acts as a GPU
//! sizes are tiny.

mod products;
mod rows;
#[path = "../timing/mod.rs"]
mod timing;

use criterion::{Criterion, criterion_group, criterion_main};

fn ops(c: &mut Criterion) {
    let Some(session) = timing::session() else { return };
    products::matmul(c, &session);
    products::linear(c, &session);
    products::attention(c, &session);
    rows::softmax(c, &session);
    rows::layernorm(c, &session);
    rows::elementwise(c, &session);
    rows::adam(c, &session);
}

criterion_group!(benches, ops);
criterion_main!(benches);
