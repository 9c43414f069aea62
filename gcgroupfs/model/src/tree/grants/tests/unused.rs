use super::*;

#[test]
fn unused_grant_is_taken_back_and_is_room_for_others() {
    let mut grants = grants();
    grants.add(A, LEFT);
    grants.add(B, RIGHT);
    grants.set_limit(TOP, None, 4096 * MIB);
    let room = |grants: &Grants, id| grants.control(id, 1).group_room.load(Relaxed);
    assert!(!grants.has_unused(A) && !grants.take_unused(A));
    for _ in 0..2 {
        grants.allocate(A, 0, 3000 * MIB).unwrap();
        assert_eq!((room(&grants, A), room(&grants, B)), (1096 * MIB, 1096 * MIB));
        assert!(!grants.has_unused(A), "only what was granted in advance");
        grants.free(A, 0, 2000 * MIB);
        assert!(grants.has_unused(A));
        assert_eq!(grants.room_below(Some(LEFT), 1), (4096 * MIB, 3096 * MIB));
        assert!(grants.take_unused(A) && !grants.take_unused(A));
        assert_eq!((grants.word(A, 0), room(&grants, B)), (1000 * MIB, 3096 * MIB));
        grants.free(A, 0, 1000 * MIB);
        assert!(grants.has_unused(A) && grants.take_unused(A));
        assert_eq!((grants.charged(TOP, None), room(&grants, B)), (0, 4096 * MIB));
    }
}
