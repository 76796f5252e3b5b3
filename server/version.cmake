# Writes OUTPUT, which defines ccs::kVersion, if it would change: run by every build.
#   cmake -DSOURCE_DIR=... -DVERSION=... -DOUTPUT=... -P version.cmake
set(version ${VERSION})
if(EXISTS ${SOURCE_DIR}/.git)
  execute_process(
    COMMAND git describe --always --dirty --exclude *
    WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  if(NOT failed)
    string(APPEND version " (${commit})")
  endif()
endif()
set(content "#include \"server/version.h\"\n\nnamespace ccs {\n\nconst char* const kVersion = \"${version}\";\n\n}  // namespace ccs\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} present)
endif()
if(NOT content STREQUAL present)
  file(WRITE ${OUTPUT} "${content}")
endif()
