/* Loads a shared library as the build or the engine does, and tries the one function that it is
 * needed for.
 *
 *   probe libclang LIBRARY HEADER [CLANG ARGUMENTS...]
 *     parses HEADER without a diagnostic, prints clang's version
 *   probe plugin LIBRARY
 *     finds the entry point of the PJRT API
 *
 * Exit status 0, or 1 with the reason on standard error. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const void *data;
    unsigned flags;
} String; /* CXString of libclang's stable C interface */

static void *library;

static void *need(const char *name) {
    void *address = dlsym(library, name);
    if (!address) fprintf(stderr, "it has no %s\n", name);
    return address;
}

static int libclang(int argc, char **argv) {
    void *(*create_index)(int, int) = need("clang_createIndex");
    void *(*parse)(void *, const char *, const char *const *, int, void *, unsigned, unsigned) =
        need("clang_parseTranslationUnit");
    unsigned (*count)(void *) = need("clang_getNumDiagnostics");
    void *(*get)(void *, unsigned) = need("clang_getDiagnostic");
    String (*format)(void *, unsigned) = need("clang_formatDiagnostic");
    String (*version)(void) = need("clang_getClangVersion");
    const char *(*text)(String) = need("clang_getCString");
    if (!create_index || !parse || !count || !get || !format || !version || !text) return 1;
    void *unit = parse(create_index(0, 0), argv[3], (const char *const *)argv + 4, argc - 4, NULL, 0, 0);
    if (!unit) {
        fprintf(stderr, "it cannot parse %s\n", argv[3]);
        return 1;
    }
    if (count(unit) > 0) {
        fprintf(stderr, "%s\n", text(format(get(unit, 0), 1)));
        return 1;
    }
    printf("%s\n", text(version()));
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    library = dlopen(argv[2], RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (strcmp(argv[1], "libclang") == 0) return argc < 4 ? 2 : libclang(argc, argv);
    return need("GetPjrtApi") ? 0 : 1;
}
