#!/bin/sh
# Runs a compiler command and keeps what ptxas says about registers, shared memory and spills beside the object, in
# OBJECT.ptxas (tests/repository/cuda_budget_test.py reads it): keep_ptxas_report.sh OBJECT COMMAND...
report=$1.ptxas
shift
"$@" 2>"$report"
code=$?
grep -v -E '^ptxas info|bytes stack frame|^$' "$report" >&2
exit $code
