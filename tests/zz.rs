use kiln::caps::DeviceCaps;
use kiln::model::{Dnn, DnnConfig, Loss};
use kiln::session::CompileOptions;
use kiln::train::TrainOptions;
use kiln::trainer::compile_training;
#[test]
fn zz() {
    let caps = DeviceCaps {
        cpu: false,
        max_binding_bytes: 2 << 30,
        max_buffer_bytes: 4 << 30,
        workgroup_bytes: 48 << 10,
        max_invocations: 1024,
        max_storage_buffers: 16,
        ..DeviceCaps::PORTABLE
    };
    let forward = Dnn::new(DnnConfig { in_size: 256, width: 256, depth: 4, out_size: 256 })
        .build_training(2048, Loss::Seed)
        .unwrap();
    let c = compile_training(&forward, &TrainOptions::default(), &caps, &CompileOptions::default()).unwrap();
    println!("{}\n{}\n{}\n{}", c.graph, c.selected, c.plan, c.report);
}
