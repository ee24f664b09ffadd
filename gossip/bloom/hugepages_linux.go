package bloom

import (
	"syscall"
	"unsafe"
)

// Advice to madvise, from Linux's include/uapi/asm-generic/mman-common.h.
const (
	madvHugePage = 14
	madvCollapse = 25 // since Linux 6.1
)

// huge asks for memory in huge pages: a match reads here and there in a matrix, and with small pages it finds the address
// of most of what it reads only in memory. A kernel that says no is as good, only slower.
func huge(rows []uint64) []uint64 {
	const page = 2 << 20
	first := unsafe.Pointer(unsafe.SliceData(rows))
	skip := int(-uintptr(first) % page) // to the first boundary
	if n := (8*len(rows) - skip) / page * page; n > 0 {
		b := unsafe.Slice((*byte)(unsafe.Add(first, skip)), n)
		_ = syscall.Madvise(b, madvHugePage)
		_ = syscall.Madvise(b, madvCollapse)
	}
	return rows
}
