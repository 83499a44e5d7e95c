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
    let forward = Dnn::new(DnnConfig::wide()).build_training(2048, Loss::Seed).unwrap();
    let c = compile_training(&forward, &TrainOptions::default(), &caps, &CompileOptions::default()).unwrap();
    println!("{}\n{}", c.selected, c.plan);
    for (i, t) in c.selected.tensors.iter().enumerate() {
        println!("t{i} {:?} {:?} {}", c.plan.slots[i], c.plan.lifetimes[i], t.name);
    }
    println!("{:?}", c.plan.slot_bytes);
}
