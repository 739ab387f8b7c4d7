// Gives memory that has been freed back to the system.
#pragma once

namespace attnd {

// Of every arena of the allocator, also what lies at its end: malloc_trim(3) leaves that to arenas
// other than the first, tens of MiB each after large messages. Takes some milliseconds and starts
// threads for that long; what is allocated next is faulted in again. One call at a time.
void ReleaseFreedMemory();

}  // namespace attnd
