// The linear index of a workgroup: grids of more than 65,535 workgroups are folded to two dimensions.
fn group_index(wg: vec3<u32>, n: vec3<u32>) -> u32 {
    return wg.x + wg.y * n.x;
}
