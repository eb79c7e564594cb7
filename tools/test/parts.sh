# The parts of ./aerie test; each is a function, run in the root of the tree. See tools/test/run.
# shellcheck shell=bash

aerie=build/release/tools/aerie
jobs=$(nproc)

# GoogleTest's own counts, out of CTest's log; a test program that died has none and counts as one.
unit_tests() {
  local log=build/hosted/Testing/Temporary/LastTest.log status=0
  ctest --preset hosted -j "$jobs" --timeout 600 || status=1
  awk '/^\[  PASSED  \]/ { passed += $4 }
       /^\[  FAILED  \] [0-9]+ tests?, listed below/ { failed += $4 }
       /^\[  SKIPPED \] [0-9]+ tests?, listed below/ { skipped += $4 }
       /^Test Failed\.$/ { died++ }
       END {
         if (died > 0 && failed == 0) failed = died
         printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$log"
  return $status
}

# L1 guests of our own, under Aerie and raw, as tests/guests/manifest.txt says.
guests() {
  $aerie guests --jobs "$jobs"
}

bench() {
  $aerie bench --gate
}

# Upstream's suite, where the user has one.
upstream_kut() {
  if [ -z "${AERIE_KUT-}" ]; then
    echo "upstream kvm-unit-tests were not run: AERIE_KUT names no folder"
    echo "0 passed, 0 failed"
    return 0
  fi
  $aerie kut "$AERIE_KUT" --jobs "$jobs"
}
