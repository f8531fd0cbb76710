# Verified writes, sequential and random, buffered and direct. SIZE: of each file.
cd "$M"
for rw in write randwrite; do
    for direct in 0 1; do
        fio --name=v --filename="fio.$rw.$direct" --rw=$rw --bs=16k --size="$SIZE" \
            --direct=$direct --ioengine=psync --verify=crc32c --verify_fatal=1 --end_fsync=1 \
            --minimal >/dev/null
    done
done
rm fio.*
