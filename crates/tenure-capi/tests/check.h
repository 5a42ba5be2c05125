/* The check that the C programs of the tests make. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "tenure.h"

/* Ends the program with the condition and Tenure's last error if the condition does not hold. */
#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, tenure_last_error());     \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#endif
