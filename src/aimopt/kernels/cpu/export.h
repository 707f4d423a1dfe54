// The functions that the library exports have a C interface.

#pragma once

#if defined(_WIN32)
#define AIMOPT_API extern "C" __declspec(dllexport)
#else
#define AIMOPT_API extern "C" __attribute__((visibility("default")))
#endif
