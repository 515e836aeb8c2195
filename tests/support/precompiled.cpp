// Holds the precompiled header that every test over LibTorch shares. An executable, since tests are compiled
// as such.
int main() { return 0; }
