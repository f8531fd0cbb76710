# One source tree, built through two mounts at the same time: each half of it in one directory, then
# all of it in a directory for each. FILES: of the source.
S=$M/made
mkdir "$S"
sum=0
for i in $(seq "$FILES"); do
    printf '#include "all.h"\nint f%d(void) { return %d * FACTOR; }\n' "$i" "$i" >"$S/f$i.c"
    sum=$((sum + 3 * i))
done
{
    echo '#define FACTOR 3'
    for i in $(seq "$FILES"); do echo "int f$i(void);"; done
} >"$S/all.h"
{
    printf '#include <stdio.h>\n#include "all.h"\nint main(void) { long sum = 0;\n'
    for i in $(seq "$FILES"); do echo "sum += f$i();"; done
    printf 'printf("%%ld\\n", sum); return 0; }\n'
} >"$S/main.c"
cat >"$S/Makefile" <<'X'
SRC := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
ALL := $(patsubst $(SRC)%.c,%.o,$(wildcard $(SRC)*.c))
ODD := $(filter %1.o %3.o %5.o %7.o %9.o,$(ALL))
program: $(ALL)
	gcc -o $@ $(ALL)
odd: $(ODD)
even: $(filter-out $(ODD),$(ALL))
%.o: $(SRC)%.c $(SRC)all.h
	gcc -O1 -c -o $@ $<
X
make -s -j2 -C "$S" odd &
ODD=$!
make -s -j2 -C "$M2/made" even
wait "$ODD"
# Nothing is left to compile, whichever mount looks: times and sizes are the same.
for dir in "$S" "$M2/made"; do
    [ "$(make -n -C "$dir" odd even | grep -c gcc)" = 0 ]
done
make -s -C "$M2/made" program
[ "$("$S/program")" = "$sum" ]
mkdir "$S/one" "$M2/made/two"
make -s -j2 -C "$S/one" -f "$S/Makefile" program &
ONE=$!
make -s -j2 -C "$M2/made/two" -f "$M2/made/Makefile" program
wait "$ONE"
[ "$("$M2/made/one/program")" = "$sum" ]
[ "$("$S/two/program")" = "$sum" ]
for i in $(seq "$FILES"); do cmp "$S/two/f$i.o" "$M2/made/one/f$i.o"; done
