//! CPU time to start a run of a chain of dependent dispatches, by the number of dispatches: to encode it, from an empty
//! command buffer to a finished one, and to submit it, the upload of its input included. Where the device has immediates,
//! to encode it is timed with parameters in them as well. Throughput is in dispatches: its inverse is the cost of one.

mod timing;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kiln::model::{Dnn, DnnConfig, Init, init};
use kiln::session::{CompileOptions, Run};
use kiln::tensor::Tensor;
use std::time::Duration;

fn encode(c: &mut Criterion) {
    let Some(session) = timing::session() else { return };
    let mut group = timing::group(c, "encode", &session);
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    for depth in [100, 1000, 4000] {
        let graph = Dnn::new(DnnConfig::square(8, depth)).build(8).expect("the sizes are valid");
        let params = init(&graph.layout, Init::He, 0).expect("a DNN's parameters have rules");
        let x = Tensor::f32([8, 8], &[0.5; 64]);
        group.throughput(Throughput::Elements(depth as u64));
        let mut time = |part: &str, immediates: bool, ns: fn(&Run) -> u64| {
            let options = CompileOptions { immediates, ..CompileOptions::default() };
            let program = session.compile(&graph, &params, &options).expect("a DNN compiles");
            assert_eq!(program.dispatches(), depth);
            group.bench_function(BenchmarkId::new(part, depth), |b| {
                b.iter_custom(|iterations| {
                    let mut total = Duration::ZERO;
                    for _ in 0..iterations {
                        let run = program.submit_unread(&[("input", &x)]).expect("a run starts");
                        total += Duration::from_nanos(ns(&run));
                        run.wait().expect("a run ends");
                    }
                    total
                });
            });
        };
        time("encode", false, |run| run.encode_ns());
        if session.caps().immediate_bytes > 0 {
            time("encode with immediates", true, |run| run.encode_ns());
        }
        time("submit", false, |run| run.submit_ns());
    }
    group.finish();
}

criterion_group!(benches, encode);
criterion_main!(benches);
