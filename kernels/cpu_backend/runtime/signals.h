// Running a kernel so that a hardware fault or an endless loop becomes a fault record.
#pragma once

namespace simt {

void install_handlers();
void restore_handlers();
bool run_guarded(void (*body)());  // false if a signal ended it

}  // namespace simt
