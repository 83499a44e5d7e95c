// The linear index of a workgroup in a grid that is folded to two or three dimensions when it is wider than the device
// allows.
fn group_index(wg: vec3<u32>, n: vec3<u32>) -> u32 {
    return wg.x + (wg.y + wg.z * n.y) * n.x;
}
