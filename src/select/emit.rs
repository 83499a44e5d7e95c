//! In: launches of a node; out: steps, each in the configuration that the table or the kernel's model gives it, if the
//! device can run it. Knows no ops.

use super::selector::{Done, Selector};
use super::{Decision, SelectError, Step, TensorId};
use crate::graph::{Node, NodeId};
use crate::kernel::{Config, KernelError, Launch, Problem};

impl Selector<'_> {
    /// Appends launches whose operands name positions in `tensors`.
    pub(super) fn emit(
        &mut self,
        id: NodeId,
        what: &str,
        launches: Vec<Launch<usize>>,
        tensors: &[TensorId],
        in_place: Option<TensorId>,
    ) -> Done {
        let node = self.graph.node(id);
        let name = if what.is_empty() { node.name.clone() } else { format!("{} ({what})", node.name) };
        for launch in launches {
            let launch = self.configure(id, launch);
            self.check_launch(node, &launch)?;
            let launch = launch.map(|position| tensors[position]);
            self.out.steps.push(Step { node: id, name: name.clone(), launch, in_place, beside: false });
        }
        Ok(())
    }

    /// A launch with what the table holds for it.
    fn configure(&mut self, id: NodeId, launch: Launch<usize>) -> Launch<usize> {
        let (Some(problem), Some(own)) = (launch.problem(), launch.config()) else { return launch };
        let config = self.choose(id, problem, own, || launch.configs(self.caps));
        if config == own { launch } else { launch.configured(config) }
    }

    /// What the table holds for a problem if the device can run it, else the model's choice, and notes it.
    pub(super) fn choose(
        &mut self,
        node: NodeId,
        problem: Problem,
        own: Config,
        configs: impl FnOnce() -> Vec<Config>,
    ) -> Config {
        let given = self.choices.get(&problem);
        let at = self.decided.get(&problem).copied();
        if let (Some(at), None) = (at, given) {
            self.out.decisions[at].uses += 1;
            return own;
        }
        let configs = configs();
        let config = given.filter(|given| configs.contains(given)).unwrap_or(own);
        match at {
            Some(at) => self.out.decisions[at].uses += 1,
            None => {
                self.decided.insert(problem.clone(), self.out.decisions.len());
                let unfit = given.filter(|given| *given != config);
                if let Some(unfit) = unfit {
                    let what = format!("the device cannot run {unfit}, which was chosen for it: {config} taken");
                    self.out.report.add("select", format!("{problem}: {what}"));
                }
                self.out.decisions.push(Decision { problem, node, uses: 1, config, configs, unfit });
            }
        }
        config
    }

    fn check_launch(&self, node: &Node, launch: &Launch<usize>) -> Done {
        let (caps, op, node) = (self.caps, node.op.name(), node.name.clone());
        let bindings = launch.operands.len();
        if bindings > caps.max_storage_buffers as usize {
            let limit = caps.max_storage_buffers;
            return Err(SelectError::Bindings { op, node, wanted: bindings, limit }.into());
        }
        // kernels count groups in u32
        if launch.groups > u64::from(caps.max_groups).saturating_pow(3).min(u64::from(u32::MAX)) {
            return Err(SelectError::Groups { op, node, wanted: launch.groups, limit: caps.max_groups }.into());
        }
        let takes = [
            ("invocations", launch.key.workgroup_size(), caps.max_invocations),
            ("bytes of workgroup memory", launch.key.workgroup_bytes() as u32, caps.workgroup_bytes),
        ];
        match takes.into_iter().find(|(_, wanted, limit)| wanted > limit) {
            Some((what, wanted, limit)) => {
                Err(KernelError::Workgroup { kernel: launch.key.name(), what, wanted, limit }.into())
            }
            None => Ok(()),
        }
    }
}
