// The head of main: `group` is the workgroup's index, those past the last end here. `index` is the invocation's in it.
@compute @workgroup_size({{ size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    let group = group_index(wg, grid);
    if group >= p.groups {
        return;
    }
