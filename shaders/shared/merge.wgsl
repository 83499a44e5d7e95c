// Merges one Partial of every lane by the kernel's merge(); all lanes get the result.
// Order: line t of SIDE takes lanes t, t + SIDE, t + 2 SIDE, … in turn, then lines 0 to SIDE - 1 are merged in turn.
// Two barriers. A second call may follow at once: tile is last read before the second barrier, and lines is written
// again only after the next call's first.
const SIDE: u32 = {{ side }}u;
var<workgroup> tile: array<Partial, {{ size }}>;
var<workgroup> lines: array<Partial, {{ side }}>;

fn merge_lanes(own: Partial, lane: u32) -> Partial {
    tile[lane] = own;
    workgroupBarrier();
    if lane < SIDE {
        var line = tile[lane];
        for (var k = lane + SIDE; k < SIZE; k += SIDE) {
            line = merge(line, tile[k]);
        }
        lines[lane] = line;
    }
    workgroupBarrier();
    var all = lines[0];
    for (var k = 1u; k < SIDE; k++) {
        all = merge(all, lines[k]);
    }
    return all;
}
