// attnd, the server; see attnd_process.h.
#include "server/attnd_process.h"

int main(int argc, char** argv) { return attnd::RunAttnd(argc, argv); }
