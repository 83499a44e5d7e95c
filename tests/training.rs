//! Training steps on the reference: PyTorch's ten steps, micro-batches, groups, limits, and texts of errors.

mod trained;

use kiln::model::Loss;
use trained::{GOLDENS, Golden, OnReference, golden_options};

#[test]
fn ten_steps_of_adam_are_pytorchs_lifted_and_as_written() {
    for name in GOLDENS {
        for (loss, lifted) in [(Loss::CrossEntropy, true), (Loss::CrossEntropy, false), (Loss::Seed, true)] {
            let golden = Golden::open(name, loss);
            let mut trainer = OnReference::new(&golden.forward, &golden.params, &golden_options(), lifted);
            for (step, expected) in golden.losses.iter().enumerate() {
                let got = trainer.loss(&golden.batch);
                assert!((got - expected).abs() <= 1e-6 * expected, "{name}, {loss}, step {step}: {got}, {expected}");
            }
            if loss == Loss::CrossEntropy {
                let (off, parameter) = golden.furthest(|name| trainer.parameter(name));
                println!("{name}: {parameter} is off by {off:.1e} of its way");
                assert!(off <= 1e-3, "{name}: {parameter} is off by {off} of its way");
            }
        }
    }
}
