/* Functions for the shims of wheels, so that shims compiled by GCC 11 or later load with the libraries of
 * manylinux_2_28: glibc 2.28, and the libstdc++ of GCC 8. They define the symbols that newer headers refer to. */

/* std::exception_ptr::operator=, which no header inlines: every libstdc++ has it. */
void **assign(void **to, void *const *from) __asm__("_ZNSt15__exception_ptr13exception_ptraSERKS0_");

/* The process's own library continues to call its own functions. */
#pragma GCC visibility push(hidden)

/* A symbol of glibc 2.32. As in a program with threads, reference counts are atomic. */
char __libc_single_threaded = 0;

/* exception_ptr::_M_addref, a symbol of GCC 11. The copy is never destroyed, so its reference stays. */
void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void **self) {
    void *copy = 0;
    assign(&copy, self);
}

/* exception_ptr::_M_release, a symbol of GCC 11. */
void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void **self) {
    void *none = 0;
    assign(self, &none);
}
