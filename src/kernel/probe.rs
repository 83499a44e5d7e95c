//! In: a number of workgroups; out: a launch of `probe.wgsl`, which measures a device's rate of f32 fused
//! multiply-adds. Knows no other kernel.

use super::template::render;
use super::{Access, Estimate, KernelKey, Launch, Operand, ParamSpace};
use minijinja::context;

/// The file stem.
pub const NAME: &str = "probe";
/// Names of the words of the parameters.
pub const PARAMS: &[&str] = &["groups", "zero", "pad0", "pad1"];

const CHAINS: usize = 8;
const UNROLL: usize = 4;

/// All that changes the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbeKey {
    /// Rounds of each invocation.
    pub rounds: u32,
    /// Invocations of a workgroup.
    pub size: u32,
}

impl ProbeKey {
    /// The kernel as WGSL.
    pub fn source(&self, params: ParamSpace) -> String {
        render(
            NAME,
            params,
            context! { rounds => self.rounds, workgroup => self.size, chains => CHAINS, unroll => UNROLL },
        )
    }

    /// How each storage binding is used.
    pub fn bindings(&self) -> Vec<Access> {
        vec![Access::ReadWrite]
    }
}

/// The launch, whose one operand is the output, and the output's bytes.
pub fn launch(key: ProbeKey, groups: u32) -> (Launch<usize>, u64) {
    let invocations = f64::from(groups) * f64::from(key.size);
    let flops = invocations * f64::from(key.rounds) * (UNROLL * CHAINS * 4 * 2) as f64;
    let bytes = u64::from(groups) * u64::from(key.size) * 4;
    let operand = Operand { tensor: 0, offset: 0, bytes };
    let estimate = Estimate { flops, bytes: bytes as f64 };
    let launch = Launch {
        key: KernelKey::Probe(key),
        params: vec![groups, 0, 0, 0],
        groups: u64::from(groups),
        operands: vec![operand],
        estimate,
    };
    (launch, bytes)
}

/// One key of every form, for tests.
#[cfg(test)]
pub(super) fn catalogue() -> Vec<KernelKey> {
    vec![KernelKey::Probe(ProbeKey { rounds: 8, size: 64 })]
}
