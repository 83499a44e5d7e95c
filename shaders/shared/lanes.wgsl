const SIZE: u32 = {{ size }}u;
// invocations that share a row
const LANES: u32 = {{ 1 if per_row else size }}u;
// elements whose sum is made before it is added to the others': 64 a lane
const BLOCK: u32 = 64u * LANES;
