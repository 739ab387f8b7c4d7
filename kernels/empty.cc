namespace attnd::kernels {}
