/* Each rank writes every second MiB of a file and reads what the other ranks wrote. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, BLOCKS = 16 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file)) return 1;
    char *bytes = malloc(MIB);
    for (int block = rank; block < BLOCKS; block += ranks) {
        memset(bytes, block + 1, MIB);
        if (MPI_File_write_at(file, (MPI_Offset)block * MIB, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE)) return 2;
    }
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int block = 0; block < BLOCKS; block++) {
        if (MPI_File_read_at(file, (MPI_Offset)block * MIB, bytes, MIB, MPI_BYTE, MPI_STATUS_IGNORE)) return 3;
        for (int i = 0; i < MIB; i++) {
            if (bytes[i] != block + 1) {
                fprintf(stderr, "rank %d, block %d: %d\n", rank, block, bytes[i]);
                MPI_Abort(MPI_COMM_WORLD, 4);
            }
        }
    }
    MPI_File_close(&file);
    free(bytes);
    MPI_Finalize();
    return 0;
}
