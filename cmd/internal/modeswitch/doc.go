// Package modeswitch keeps the mode in use that settings ask for.
//
// Open opens the first mode, for each family beside the others, and Choose tries them in turn
// where settings say auto. Switch.Follow then changes the mode when settings do, make before
// break: the new mode holds everything of a family before what the former one made of it is
// removed. It opens families that failed again and again, repairs what other programs change,
// and removes what earlier runs left in the kernel in other modes; Cleanup does only that.
//
// The main types are the Switch; Active, a mode that is open, with a backend for each family;
// and opening, a backend that is being opened, which may take long.
package modeswitch
