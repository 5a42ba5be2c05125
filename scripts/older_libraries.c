/* Linked into the shims of wheels, so that those compiled by GCC 11 or later load with the libraries of manylinux_2_28: glibc
 * 2.28, and the libstdc++ of GCC 8. It defines what the headers of newer ones refer to. */

/* std::exception_ptr::operator=, which no header inlines: every libstdc++ has it. */
void **assign(void **to, void *const *from) __asm__("_ZNSt15__exception_ptr13exception_ptraSERKS0_");

/* The process's own library goes on to call its own. */
#pragma GCC visibility push(hidden)

/* Of glibc 2.32. As in a program with threads, whatever counts references is atomic. */
char __libc_single_threaded = 0;

/* exception_ptr::_M_addref, of GCC 11. The copy is never destroyed, so its reference stays. */
void _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv(void **self) {
    void *copy = 0;
    assign(&copy, self);
}

/* exception_ptr::_M_release, of GCC 11. */
void _ZNSt15__exception_ptr13exception_ptr10_M_releaseEv(void **self) {
    void *none = 0;
    assign(self, &none);
}
