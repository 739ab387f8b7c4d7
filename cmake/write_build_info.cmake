# Script: writes OUTPUT from INPUT with ATTND_VERSION, ATTND_COMPILER and the commit of SOURCE_DIR.
# ATTND_COMMIT, when given, stands for a tree that was copied without its .git folder; of a whole hash its first 12 digits, as git tells them.
if(NOT ATTND_COMMIT)
  find_program(GIT_PROGRAM git)
  if(GIT_PROGRAM)
    execute_process(
      COMMAND ${GIT_PROGRAM} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
      OUTPUT_VARIABLE ATTND_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
if(ATTND_COMMIT MATCHES "^[0-9a-f]+$")
  string(SUBSTRING "${ATTND_COMMIT}" 0 12 ATTND_COMMIT)
endif()
if(NOT ATTND_COMMIT)
  set(ATTND_COMMIT unknown)
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
